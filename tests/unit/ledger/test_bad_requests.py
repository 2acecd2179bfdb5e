"""Whatever is in whichever field of whichever request: ledger and auditor say the same of it.

Nothing but a good request changes anything, and a good one is still applied after each bad one.
"""

from copy import deepcopy
from typing import Any

import msgspec
import pytest

from streams.ledger.ledger import Channel
from streams.schemas import VERSION
from tests.unit.ledger.audited import AuditedLog

POLICY = {
    "dataset": "fresh",
    "partitions": 1,
    "measure": "renyi",
    "budget": [2**44, 2**45],
    "odometer_step": [2**40, 2**41],
    "orders": [2.0, 8.5],
    "on_exhaustion": "halt",
    "user_ids": "one-kind",
}
REQUESTS: dict[str, dict[str, Any]] = {
    "create-dataset": {"request": "t", "policy": POLICY},
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
}
ONLY_VERSION_2 = {"withdraw-dataset", "close-run"}

VALUES: list[Any] = [
    *(None, True, False),
    *(0, 1, 2, 3, -1, 2**31, 2**53, 2**53 + 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1),
    *(-(2**63), 0.0, -0.0, 1.0, 1.5, 1e308, -1e-300),
    *("", "a", "d", "r", "1", "a b", "-a", "a\n", "é", "e\u0308", "\U0001f9ee", "x" * 129),
    *("x" * 65, "x" * 257, "mixed", "one-kind", "string", "integer", "halt", "clip", "zcdp", "gdp"),
    *("approx-dp", "laplace", "pure-dp", "AAAAAAAA", "AAAAAAAAAAA=", "charge"),
    *(b"", b"1234567", b"12345678", bytes(16)),
    *([], [1], [1, 1], [2, 1], [0], [1.5], [1.5, 2], ["a"], ["", "a"], [None], [True], [[]], [{}]),
    *(["é"], ["e\u0308"], [2**63], [-(2**63), 2**63 - 1], [2**61], [2**61 + 1], [-1.0, 0.5]),
    *({}, {"a": 1}, POLICY),
]
IN_MSGPACK_ONLY = [float("nan"), float("inf"), [float("nan"), 1.0], [1.0, float("inf")]]


def as_json(record: Any) -> bytes:
    return msgspec.json.encode(record)


def as_msgpack(record: Any) -> bytes:
    return msgspec.msgpack.encode(record)


ENCODINGS = pytest.mark.parametrize("encoded", [as_json, as_msgpack], ids=["json", "msgpack"])
KINDS = pytest.mark.parametrize("kind", REQUESTS)
VERSIONS = pytest.mark.parametrize("v", range(1, VERSION + 1), ids="version {}".format)


def new_log() -> AuditedLog:
    """Two runs that have come to step 0 under attempt 2, and a dataset that nobody uses."""
    log = AuditedLog(v=2)
    log.create()
    for run in ("r", "ended"):
        log.open(run=run, attempt=2)
        log.charge(0, [1], [0.5], run=run, attempt=2)
    log.create("idle")
    return log


def good(kind: str, v: int) -> dict[str, Any]:
    record = {"type": kind, "v": v, **REQUESTS[kind]}
    if kind == "create-dataset" and v == 1:
        record["policy"] = {name: value for name, value in POLICY.items() if name != "user_ids"}
    return record


class Judge:
    """Applies records to a log that is new again after each that is not refused."""

    def __init__(self) -> None:
        self._new = new_log()
        self.log = deepcopy(self._new)
        self.refused = 0
        self._before = self._state()

    def refuses(self, value: bytes) -> bool:
        """Whether a record is refused, by ledger and auditor alike; then it has left no trace."""
        self.log.send(value)
        refused = self.log.outputs[-1][0].channel is Channel.REJECTS
        assert refused == (self.log.reason() is not None), value
        if not refused:
            self.end()
            self.log = deepcopy(self._new)
        assert self._state() == self._before, value
        self.refused += refused
        return refused

    def end(self) -> None:
        """Everything was judged alike."""
        self.log.audit()

    def _state(self) -> tuple[Any, ...]:
        ledger = self.log.ledger
        return ledger.summary(), ledger.uncompacted(), dict(ledger.runs), self.log.spent()


@pytest.fixture
def judge():
    judge = Judge()
    yield judge
    charged = judge.log.charge(1, [1, 2], [0.5, 1.0], attempt=2)
    assert charged.users == 2
    judge.end()


@VERSIONS
@ENCODINGS
@KINDS
def test_good_requests_are_applied_by_the_versions_that_have_them(judge, kind, encoded, v):
    assert judge.refuses(encoded(good(kind, v))) == (v == 1 and kind in ONLY_VERSION_2)


@VERSIONS
@ENCODINGS
@KINDS
def test_any_value_in_any_field_is_judged_alike(judge, kind, encoded, v):
    record = good(kind, v)
    for field in [*record, "unknown"]:
        for value in VALUES if encoded is as_json else VALUES + IN_MSGPACK_ONLY:
            judge.refuses(encoded({**record, field: value}))
        judge.refuses(encoded({name: value for name, value in record.items() if name != field}))
    assert judge.refused > 50 * len(record)


@VERSIONS
@ENCODINGS
def test_any_value_in_any_field_of_a_policy_is_judged_alike(judge, encoded, v):
    record = good("create-dataset", v)
    policy = record["policy"]
    for field in [*policy, "user_ids", "unknown"]:
        for value in VALUES:
            judge.refuses(encoded({**record, "policy": {**policy, field: value}}))
        without = {name: value for name, value in policy.items() if name != field}
        judge.refuses(encoded({**record, "policy": without}))
    assert judge.refused > 50 * len(policy)


@ENCODINGS
@KINDS
def test_a_request_that_is_cut_off_anywhere_or_goes_on_is_malformed(judge, kind, encoded):
    value = encoded(good(kind, 2))
    for wrong in [*(value[:length] for length in range(len(value))), value + b"\0", value + value]:
        assert judge.refuses(wrong)
        assert judge.log.reason() == "malformed"


FEATURES = [
    ("close-run", {}),
    ("withdraw-dataset", {}),
    ("open-run", {"attempt": 0}),
    ("open-run", {"attempt": 2**53 + 1}),
    ("charge", {"attempt": 2**53 + 1}),
    ("create-dataset", {"policy": {**POLICY, "user_ids": "mixed"}}),
]


@ENCODINGS
@pytest.mark.parametrize("v", [{}, {"v": 1}], ids=["without a version", "version 1"])
@pytest.mark.parametrize(("kind", "fields"), FEATURES, ids=str)
def test_what_only_version_2_has_is_malformed_in_version_1(judge, kind, fields, v, encoded):
    assert judge.refuses(encoded({"type": kind, **REQUESTS[kind], **fields, **v}))
    assert judge.log.reason() == "malformed"
    (output,) = judge.log.outputs[-1]
    assert "needs version 2" in msgspec.msgpack.decode(output.value)["detail"]
