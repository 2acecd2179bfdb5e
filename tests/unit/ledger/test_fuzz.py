"""Records as bytes, most of them damaged: none ends a worker, and the auditor says why of each.

One seed is a few thousand records; any number of other seeds can be tried by

    python -m tests.unit.ledger.test_fuzz FIRST_SEED SEEDS
"""

import random
import sys
from typing import Any

import msgspec
import pytest

from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.test_bad_requests import IN_MSGPACK_ONLY, POLICY, REQUESTS, VALUES

RECORDS = 2_000
DATASETS = ["a", "b", "c", "old", "nobody-created-this"]
RUNS = ["r", "s", "nobody-opened-this"]
FIELDS = {"type", "v", *POLICY, *(name for fields in REQUESTS.values() for name in fields)}
NAMES = ["x", "é", "e\u0308", "\U0001f9ee", "1", "\u212b"]
INTEGERS = [0, 1, 2, 3, -1, 2**53, 2**63 - 1, -(2**63)]
NORMS = [0.0, 0.25, 1.0, 3.0, 30.0, 1e-300, 1e300, -1.0, 2.5]


class Fuzz:
    """Makes records of a log, knowing enough of it to get some of them through."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log = AuditedLog(v=1 + seed % 2)
        self.log.create("a", budget=40.0, **self.log.any_ids)
        self.log.create("b", budget=3.0, on_exhaustion="clip", **self.log.any_ids)
        orders = {"measure": "renyi", "orders": [1.5, 2.0, 32.0]}
        self.log.create("c", budget=[9.0, 12.0, 90.0], **orders, **self.log.any_ids)
        self.log.create("old", v=1)
        for dataset in DATASETS[:-1]:
            self.log.open(dataset=dataset, run="r", v=2)

    def run(self, records: int) -> None:
        """Add records to the log, and compare everything at the end."""
        for _ in range(records):
            value = self.damaged(self.encoded(self.request()))
            self.log.send(value)
            answer = msgspec.msgpack.decode(self.log.outputs[-1][0].value)
            assert answer.get("reason") == self.log.reason(), value
        self.log.audit()

    def request(self) -> dict[str, Any]:
        rng = self.rng
        kind = rng.choices(list(REQUESTS), [1, 1, 3, 0.3, 20])[0]
        dataset, run = rng.choice(DATASETS), rng.choice(RUNS)
        state = self.log.ledger.runs.get((dataset, run))
        attempt = state.attempt if state else 1
        record = {"type": kind, "v": rng.choice([1, 2, 2]), **REQUESTS[kind]}
        if kind == "create-dataset":
            kinds = rng.choice(["one-kind", "mixed"])
            record["policy"] = {**POLICY, "dataset": dataset, "user_ids": kinds}
            if record["v"] == 1:
                del record["policy"]["user_ids"]
        else:
            record["dataset"] = dataset
        if "run" in record:
            record |= {"run": run, "attempt": attempt + rng.choice([0, 0, 0, 0, 1, -1])}
        if kind == "open-run":
            record["request"] = rng.choice("tu")
        if kind == "charge":
            record |= self.step(state.step if state else -1)
        if rng.random() < 0.2:
            values = VALUES + IN_MSGPACK_ONLY
            record[rng.choice([*record, "unknown"])] = rng.choice(values)
        return record

    def step(self, last: int) -> dict[str, Any]:
        rng = self.rng
        pool = rng.choice([INTEGERS, INTEGERS, range(40), NAMES, INTEGERS + NAMES])
        users = [rng.choice(pool) for _ in range(rng.choice([0, 1, 1, 3]))]
        if rng.random() < 0.8:
            users = list(dict.fromkeys(users))
        return {
            "step": last + rng.choice([1, 1, 1, 1, 1, 0, 2]),
            "users": users,
            "norms": [rng.choice(NORMS) for _ in users],
            "mechanism": rng.choice(["gaussian", "gaussian", "laplace", "pure-dp"]),
            "scale": rng.choice([4.0, 10.0, 1e-3, 1e12]),
            "clip_norm": rng.choice([None, None, 2.0, 1e308]),
        }

    def encoded(self, record: dict[str, Any]) -> bytes:
        rng = self.rng
        users = record.get("users")
        if isinstance(users, list) and all(map(_fits_in_64_bits, users)) and rng.random() < 0.3:
            packed = (user.to_bytes(8, "little", signed=True) for user in users)
            record["users"] = b"".join(packed)
        fields = list(record.items())
        rng.shuffle(fields)
        encode = rng.choice([msgspec.json.encode, msgspec.msgpack.encode])
        return encode(dict(fields))

    def damaged(self, value: bytes) -> bytes | None:
        rng = self.rng
        octets = bytearray(value)
        match rng.choices(
            ["not", "octets", "cut", "splice", "random", "none"], [70, 9, 6, 6, 6, 1]
        )[0]:
            case "octets":
                for _ in range(rng.randint(1, 4)):
                    octets[rng.randrange(len(octets))] = rng.randrange(256)
            case "cut":
                start = rng.randrange(len(octets))
                del octets[start : start + rng.randint(1, 9)]
            case "splice":
                other = rng.choice([r for r in self.log.records if r] or [b"{}"])
                place = rng.randrange(len(octets))
                octets[place:] = other[rng.randrange(len(other)) :]
            case "random":
                octets[:] = rng.randbytes(rng.randrange(1, 60))
            case "none":
                return None
        # Of a field that is there twice the last one counts, but the first is looked at too: what
        # becomes of such a record depends on how it is read.
        return value if _repeats_a_field(octets) else bytes(octets)


def _repeats_a_field(octets: bytearray) -> bool:
    names = [name.encode() for name in FIELDS]
    in_json = (octets.count(b'"%b":' % name) for name in names)
    in_msgpack = (octets.count(bytes([0xA0 + len(name)]) + name) for name in names)
    return max(*in_json, *in_msgpack) > 1


def _fits_in_64_bits(user: Any) -> bool:
    return type(user) is int and -(2**63) <= user < 2**63


@pytest.mark.parametrize("seed", range(4))
def test_no_record_ends_a_worker_and_the_auditor_agrees_about_each(seed):
    fuzz = Fuzz(seed)
    fuzz.run(RECORDS)
    applied = len(fuzz.log.records) - len(fuzz.log.auditor.rejects)
    assert applied > RECORDS // 20


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
        print(seed, end=" ", flush=True)
        Fuzz(seed).run(RECORDS)
