"""Whatever is in whichever field of whichever request: ledger and auditor say the same of it.

Nothing but a good request changes anything, and a good one is still applied after each bad one.
"""

import pickle
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import pytest

from streams.ledger.retirement import agreement
from streams.records import VERSION, CollectTerms
from streams.records.digests import cost_table_digest
from tests.keys import allowing, public_key, signed
from tests.unit.ledger.roster_logs import CLIP, LEVELS, RosterLog, prices

LIST = allowing(alice="charge", mary="manage")
ALLOW: list[Any] = msgspec.to_builtins(LIST, builtin_types=(bytes,))
POLICY = {
    "dataset": "fresh",
    "partitions": 1,
    "measure": "renyi",
    "budget": [2**44, 2**45],
    "odometer_step": [2**40, 2**41],
    "orders": [2.0, 8.5],
    "on_exhaustion": "halt",
    "user_ids": "one-kind",
    "allow": ALLOW,
}


REQUESTS: dict[str, dict[str, Any]] = {
    "create-dataset": {"request": "t", "policy": POLICY, "log": bytes(16)},
    "withdraw-dataset": {"dataset": "idle", "request": "t"},
    "open-run": {"dataset": "d", "run": "r", "attempt": 3, "request": "t"},
    "close-run": {"dataset": "d", "run": "ended", "attempt": 2, "request": "t"},
    "charge": {
        "dataset": "d",
        "run": "r",
        "attempt": 2,
        "step": 1,
        "users": [1, 2],
        "norms": [0.5, 1.0],
        "mechanism": "gaussian",
        "scale": 4.0,
        "clip_norm": 2.0,
    },
    "norm": {"dataset": "c", "run": "r", "attempt": 2, "step": 1, "user": 2, "norm": 0.5},
    "norms": {"dataset": "c", "run": "r", "attempt": 2, "step": 1, "users": [2], "norms": [0.5]},
    "enrol": {
        "dataset": "d",
        "run": "r",
        "attempt": 2,
        "request": "t",
        "first": 1,
        "users": [2, 3],
        "clip_norm": CLIP,
        "levels": LEVELS,
    },
    "charge-roster": {
        "dataset": "d",
        "run": "r",
        "attempt": 2,
        "step": 1,
        "members": 2,
        "cost_table_digest": cost_table_digest(prices()),
        "units": prices(),
        "positions": b"\1\0\0\0",
        "levels": b"\3",
        "mechanism": "gaussian",
        "scale": 4.0,
        "sampling_rate": 1.0,
    },
    "erase": {"request": "t", "user": 1, "dataset": "d", "hidden": True},
    "close-dataset": {"dataset": "idle", "request": "t"},
    "set-access": {
        "dataset": "listed",
        "request": "t",
        "number": 100,
        "allow": ALLOW,
        "log": bytes(16),
    },
    "retire": {"request": "t", "successor": bytes(16), "partitions": 3},
    "signed": {
        "request": msgspec.msgpack.encode(
            {"type": "open-run", "dataset": "d", "run": "s", "attempt": 3, "request": "t"}
        ),
        "signature": bytes(64),
        "key": public_key("alice"),
    },
}
SIGNERS = {"set-access": "mary", "retire": "mary"}
"""The keys that sign requests which no other key may send."""

VALUES: list[Any] = [
    *(None, True, False),
    *(0, 1, 2, 3, -1, 2**31, 2**53, 2**53 + 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1),
    *(-(2**63), 0.0, -0.0, 1.0, 1.0000000000000002, 1.5, 1e308, -1e-300),
    *(255, 256, 2**14, 2**14 + 1, 100_000, 100_001, "x" * 128, "x" * 256, bytes(15), bytes(17)),
    *("", "a", "d", "r", "1", "a b", "-a", "a\n", "é", "e\u0308", "\U0001f9ee", "x" * 129),
    *("x" * 65, "x" * 257, "mixed", "one-kind", "string", "integer", "halt", "clip", "zcdp", "gdp"),
    *("laplace", "pure-dp", "AAAAAAAA", "AAAAAAAAAAA=", "charge", "enrol"),
    *("poisson-gaussian", b"", b"1234567", b"12345678", bytes(16), bytes(4), b"\7", b"\x0b", b"ab"),
    *([], [1], [1, 1], [2, 1], [0], [1.5], [1.5, 2], ["a"], ["", "a"], [None], [True], [[]], [{}]),
    *(["é"], ["e\u0308"], [2**63], [-(2**63), 2**63 - 1], [2**61], [2**61 + 1], [-1.0, 0.5]),
    *({}, {"a": 1}, POLICY, bytes(32), bytes(64), public_key("alice"), [bytes(16)], 100, 101),
    *(ALLOW, ALLOW * 33, ALLOW * 2, [{"key": bytes(32), "rights": ["manage"]}]),
    *([{**ALLOW[0], "rights": rights}] for rights in ([], ["read"], ["charge"], ["manage"] * 2)),
    *([{**ALLOW[0], "rights": ["manage", "charge"]}], [{**ALLOW[0], "key": "a"}], [ALLOW[0], 1]),
]
IN_MSGPACK_ONLY = [float("nan"), float("inf"), [float("nan"), 1.0], [1.0, float("inf")]]


def new_log() -> RosterLog:
    """Three runs at step 0 under attempt 2, one of which collects norms; unused datasets."""
    log = RosterLog()
    log.create()
    for run in ("r", "ended"):
        log.open(run=run, attempt=2)
        log.charge(0, [1], [0.5], run=run, attempt=2)
    log.enrol([1, 2], attempt=2)
    log.create("c", user_ids="integer")
    log.open("c", attempt=2, collect=CollectTerms(clip_norm=1.0))
    log.charge(0, [], [], dataset="c", attempt=2, collected=True)
    log.create("idle")
    log.create("listed", allow=LIST)
    return log


REQUESTS["retire"]["agreement"] = agreement(new_log().ledger.state)


@cache
def pickled_log() -> bytes:
    """That log, from which new ones are made: a deep copy takes four times as long."""
    return pickle.dumps(new_log())


def changed(record: dict[str, Any], values: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the record with each value in each field, and without each field."""
    for field in [*record, "unknown"]:
        yield from ({**record, field: value} for value in values)
        yield {name: value for name, value in record.items() if name != field}


def changed_inside(record: dict[str, Any], values: list[Any]) -> Iterator[dict[str, Any]]:
    if "policy" in record:
        yield from ({**record, "policy": policy} for policy in changed(record["policy"], values))
    if record["type"] == "open-run":
        opened = {**record, "dataset": "c", "run": "new"}
        yield from ({**opened, "min_separation": value} for value in values)
        yield from ({**opened, "collect": {"clip_norm": 1.0, "mechanism": one}} for one in values)
        yield from ({**opened, "collect": {"clip_norm": value}} for value in values)


@pytest.mark.slow
@pytest.mark.parametrize("encoded", [msgspec.json.encode, msgspec.msgpack.encode])
@pytest.mark.parametrize("kind", REQUESTS)
def test_any_value_in_any_field_is_judged_alike(kind, encoded):
    record = {"type": kind, "v": VERSION, **REQUESTS[kind]}
    values = VALUES if encoded is msgspec.json.encode else VALUES + IN_MSGPACK_ONLY
    log: RosterLog = pickle.loads(pickled_log())
    others = [*changed(record, values), *changed_inside(record, values)]
    refused = 0
    for other in [record, *others]:
        value = encoded(other)
        log.send(signed(value, SIGNERS[kind]) if kind in SIGNERS else value)
        if log.reason():
            refused += 1
            assert other is not record
        else:  # the next record is sent to a new log again
            log.audit()
            log = pickle.loads(pickled_log())
    assert 0.5 * len(others) < refused < len(others)
    charged = log.charge(1, [1, 2], [0.5, 1.0], attempt=2)
    assert charged.users == 2
    log.audit()
