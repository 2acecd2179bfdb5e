"""Records as bytes, most of them damaged, for a log whose state is known."""

import random
import struct
from itertools import accumulate
from typing import Any

import msgspec

from streams.ledger.ledger import Ledger
from streams.records import VERSION
from tests.audit.auditor_rosters import cost_table_digest
from tests.keys import allowing, signed
from tests.unit.ledger.test_bad_requests import IN_MSGPACK_ONLY, POLICY, REQUESTS, VALUES

DATASETS = [
    *("a", "b", "c", "own", "inner", "clips", "old", "guarded", "parts", "part", "more"),
    "nobody-created-this",
]
LISTS = [
    allowing(alice="charge", mary="manage"),
    allowing(alice="charge manage", mary="manage"),
    allowing(mary="charge manage"),
]
"""Access lists of the dataset ``guarded``, the first one and later ones."""
SIGNERS = ["alice", "mary", "eve"]
RUNS = ["r", "s", "separated", "nobody-opened-this"]
FIELDS = sorted({"type", "v", *POLICY, *(name for r in REQUESTS.values() for name in r)})
MOST_FIELDS = 28
"""The maximum number of fields of a random map."""
NAMES = ["x", "é", "e\u0308", "\U0001f9ee", "1", "\u212b"]
INTEGERS = [0, 1, 2, 3, -1, 2**53, 2**63 - 1, -(2**63)]
NORMS = [0.0, 0.25, 1.0, 3.0, 30.0, 1e-300, 1e300, -1.0, 2.5]
KINDS = {
    "create-dataset": 1,
    "withdraw-dataset": 1,
    "open-run": 3,
    "close-run": 0.3,
    "charge": 14,
    "enrol": 4,
    "charge-roster": 14,
    "erase": 0.5,
    "close-dataset": 0.02,
    "set-access": 0.4,
}
DAMAGES = {"not": 80, "octets": 9, "cut": 6, "splice": 6, "random": 6, "structure": 6, "none": 1}


class Records:
    """Makes records for a log, most of them damaged.

    Args:
        rng: the source of randomness.
        ledger: the ledger of the log, so that some records are applied.
    """

    def __init__(self, rng: random.Random, ledger: Ledger) -> None:
        self._rng = rng
        self._ledger = ledger
        self._last = b"{}"
        self._number = 100

    def next(self) -> bytes | None:
        """Return the next record."""
        request = self._request()
        value = self._damaged(self._signed(request, self._encoded(request)))
        self._last = value or self._last
        return value

    def _request(self) -> dict[str, Any]:
        rng = self._rng
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        dataset, run = rng.choice(DATASETS), rng.choice(RUNS)
        state = self._ledger.state.runs.get((dataset, run))
        record = {"type": kind, "v": rng.choice([VERSION] * 19 + [2]), **REQUESTS[kind]}
        if kind == "create-dataset":
            kinds = rng.choice(["one-kind", "mixed"])
            record["policy"] = {**POLICY, "dataset": dataset, "user_ids": kinds}
            if rng.random() < 0.7:
                del record["policy"]["allow"], record["log"]
            if rng.random() < 0.3:
                parents = rng.sample(DATASETS, rng.choice([1, 1, 2]))
                record["policy"]["parents"] = sorted(parents)
                record["policy"]["on_exhaustion"] = rng.choice(["halt", "clip"])
            if rng.random() < 0.2:
                record["policy"]["share_of"] = rng.choice(DATASETS)
            if rng.random() < 0.2:
                record["policy"]["assume_independent_timing"] = True
            if rng.random() < 0.2:
                record["policy"]["sampled_levels"] = rng.random() < 0.5
        elif kind == "erase" and rng.random() < 0.3:
            del record["dataset"]
        else:
            record["dataset"] = dataset
        if kind == "set-access":
            self._number += rng.choice([1, 1, 1, 0, -1])
            allow = msgspec.to_builtins(rng.choice(LISTS), builtin_types=(bytes,))
            record |= {"number": self._number, "allow": allow}
            record["dataset"] = rng.choice([dataset, "guarded", "guarded"])
        if kind == "erase":
            record["user"] = rng.choice([*INTEGERS, *range(40), *NAMES])
            record["hidden"] = rng.random() < 0.5
        if "run" in record:
            attempt = state.attempt if state else 1
            record |= {"run": run, "attempt": attempt + rng.choice([0, 0, 0, 0, 1, -1])}
        if kind == "open-run":
            record["request"] = rng.choice("tu")
            if record["v"] == 3 and rng.random() < 0.5:
                record["take_over"] = True
            if run == "separated" or rng.random() < 0.2:
                record["min_separation"] = rng.choice([2, 3, 3, 3, 2**14, 1])
        if kind == "charge":
            record |= self._step(state.step if state else -1)
        if kind == "enrol":
            record |= self._enrolment(dataset, run)
        if kind == "charge-roster":
            record |= self._roster_step(dataset, run, state.step if state else -1)
        if rng.random() < 0.2:
            values = VALUES + IN_MSGPACK_ONLY
            record[rng.choice([*record, "unknown"])] = rng.choice(values)
        return record

    def _signed(self, record: dict[str, Any], value: bytes) -> bytes:
        """Sign most of the requests that have to be signed, and some others."""
        rng = self._rng
        manages = ("erase", "close-dataset", "withdraw-dataset", "set-access", "create-dataset")
        key = "mary" if record["type"] in manages else "alice"
        if record.get("dataset") != "guarded" and rng.random() < 0.9:
            return value
        if rng.random() < 0.1:
            return value
        if rng.random() < 0.1:
            key = rng.choice(SIGNERS)
        partition = 1 if rng.random() < 0.05 else 0
        return signed(value, key, partition=partition)

    def _step(self, last: int) -> dict[str, Any]:
        rng = self._rng
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
            "reserve": rng.choice([0.0, 0.0, 0.0, 0.3, 0.999, 1.0]),
        }

    def _enrolment(self, dataset: str, run: str) -> dict[str, Any]:
        rng, known = self._rng, self._members(dataset, run)
        first = rng.choice([len(known), len(known), len(known) // 2, 0, len(known) + 1])
        pool = rng.choice([INTEGERS, range(40), NAMES])
        added = list(dict.fromkeys(rng.choice(pool) for _ in range(rng.choice([0, 1, 3, 9]))))
        if rng.random() < 0.7:
            added = [user for user in added if user not in known]
        return {
            "first": first,
            "users": known[first:] + added,
            "clip_norm": rng.choice([2.0] * 9 + [5e-324]),
            "levels": rng.choice([3] * 9 + [255]),
        }

    def _roster_step(self, dataset: str, run: str, last: int) -> dict[str, Any]:
        rng, count = self._rng, len(self._members(dataset, run))
        terms = self._ledger.state.rosters.get((dataset, run))
        units = b""
        if terms is None or not terms.cost_table_digest or rng.random() < 0.5:
            units = self._cost_table(dataset, 3 if terms is None else terms.levels)
        cost_table = cost_table_digest(units) if units or terms is None else terms.cost_table_digest
        positions = sorted(rng.sample(range(count), rng.randint(0, count)))
        if rng.random() < 0.1:
            positions.append(rng.choice([0, count, 2**32 - 1]))
        levels = bytes(rng.choice([0, 1, 2, 3, 3, 3]) for _ in positions)
        if rng.random() < 0.05:
            levels += rng.choice([b"\0", b"\4", b"\xff"])
        if rng.random() < 0.2:
            positions, levels = [], bytes(rng.choice([0, 1, 2, 3]) for _ in range(count))
        return {
            "step": last + rng.choice([1, 1, 1, 1, 1, 0, 2]),
            "members": count + rng.choice([0] * 19 + [1]),
            "cost_table_digest": rng.choice([cost_table] * 19 + [bytes(16)]),
            "units": units,
            "positions": struct.pack(f"<{len(positions)}I", *positions),
            "levels": levels,
            "mechanism": rng.choice(["gaussian"] * 9 + ["poisson-gaussian", "laplace", "pure-dp"]),
            "sampling_rate": rng.choice([1.0] * 19 + [0.5]),
        }

    def _cost_table(self, dataset: str, levels: int) -> bytes:
        """Prices of every level and order; now and then what is no cost table."""
        rng = self._rng
        orders = [1]
        if dataset in self._ledger.state.datasets:
            orders = [
                len(policy.budget)
                for policy in self._ledger.state.policies.budgets(dataset).policies
            ]
        steps = [0, 1, 2**38, 2**42, 2**44, 2**60]
        units: list[int] = []
        for count in orders:
            columns = [
                list(
                    accumulate(
                        [0] + [rng.choice(steps[: rng.randint(1, 6)]) for _ in range(levels)]
                    )
                )
                for _ in range(count)
            ]
            units += [min(price, 2**62) for row in zip(*columns, strict=True) for price in row]
        if rng.random() < 0.05:
            units[rng.randrange(len(units))] = rng.choice([-1, 5, 2**62 + 1, -(2**63)])
        return struct.pack(f"<{len(units)}q", *units)

    def _members(self, dataset: str, run: str) -> list[Any]:
        """Of a roster, as the ledger has them."""
        members = self._ledger.state.rosters.members.get((dataset, run))
        if members is None:
            return []
        users = self._ledger.state.datasets[dataset].users_at(members.slots)
        return users.tolist()

    def _encoded(self, record: dict[str, Any]) -> bytes:
        rng = self._rng
        users = record.get("users")
        if isinstance(users, list) and all(map(_fits_in_64_bits, users)) and rng.random() < 0.3:
            packed = (user.to_bytes(8, "little", signed=True) for user in users)
            record["users"] = b"".join(packed)
        fields = list(record.items())
        rng.shuffle(fields)
        return rng.choice([msgspec.json.encode, msgspec.msgpack.encode])(dict(fields))

    def _damaged(self, value: bytes) -> bytes | None:
        rng = self._rng
        octets = bytearray(value)
        match rng.choices(list(DAMAGES), list(DAMAGES.values()))[0]:
            case "octets":
                for _ in range(rng.randint(1, 4)):
                    octets[rng.randrange(len(octets))] = rng.randrange(256)
            case "cut":
                start = rng.randrange(len(octets))
                del octets[start : start + rng.randint(1, 9)]
            case "splice":
                place = rng.randrange(len(octets))
                octets[place:] = self._last[rng.randrange(len(self._last)) :]
            case "random":
                octets[:] = rng.randbytes(rng.randrange(1, 60))
            case "structure":
                octets[:] = self._structured()
            case "none":
                return None
        return bytes(octets)

    def _structured(self) -> bytes:
        rng = self._rng
        structure = self._map(3) if rng.random() < 0.9 else self._structure(4)
        return rng.choice([msgspec.json.encode, msgspec.msgpack.encode])(structure)

    def _map(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        names = rng.sample(FIELDS, rng.randrange(MOST_FIELDS))
        structure = {name: self._structure(depth - 1) for name in names}
        if rng.random() < 0.8:
            structure["type"] = rng.choice(list(REQUESTS))
        return structure

    def _structure(self, depth: int) -> Any:
        rng = self._rng
        match rng.randrange(8) if depth else 0:
            case 1:
                return [self._structure(depth - 1) for _ in range(rng.randrange(5))]
            case 2:
                return self._map(depth)
            case 3:
                return rng.getrandbits(63) >> rng.randrange(63)
            case 4:
                return "".join(chr(rng.randrange(0xD800)) for _ in range(rng.randrange(6)))
            case _:
                return rng.choice(VALUES)


def repeats_a_field(value: bytes | None) -> bool:
    """Return whether a field may appear twice.

    The outcome of such a record depends on the decoder, so the auditor cannot judge it.
    """
    octets = value or b""
    try:  # a signed one has a record in it, which repeats nothing by having the same fields
        inner = msgspec.msgpack.decode(octets, type=_Signed).request
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _repeats(octets)
    return _repeats(inner) or _repeats(octets.replace(inner, b"") if inner else octets)


class _Signed(msgspec.Struct):
    request: bytes


def _repeats(octets: bytes) -> bool:
    names = [name.encode() for name in FIELDS]
    in_json = (octets.count(b'"%b":' % name) for name in names)
    in_msgpack = (octets.count(bytes([0xA0 + len(name)]) + name) for name in names)
    return max(*in_json, *in_msgpack) > 1


def _fits_in_64_bits(user: Any) -> bool:
    return type(user) is int and -(2**63) <= user < 2**63
