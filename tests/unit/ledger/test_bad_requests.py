"""Whatever is in whichever field of whichever request: ledger and auditor say the same of it.

Nothing but a good request changes anything, and a good one is still applied after each bad one.
"""

import pickle
from functools import cache
from typing import Any

import msgspec
import pytest

from streams.ledger.ledger import Channel
from streams.ledger.retirement import agreement
from streams.records import VERSION, CollectTerms
from streams.records.digests import cost_table_digest
from tests.audit.stored import collected_of
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


def as_json(record: Any) -> bytes:
    return msgspec.json.encode(record)


def as_msgpack(record: Any) -> bytes:
    return msgspec.msgpack.encode(record)


ENCODINGS = pytest.mark.parametrize("encoded", [as_json, as_msgpack], ids=["json", "msgpack"])
KINDS = pytest.mark.parametrize("kind", REQUESTS)


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


def good(kind: str) -> dict[str, Any]:
    return {"type": kind, "v": VERSION, **REQUESTS[kind]}


def sealed(kind: str, value: bytes) -> bytes:
    """Sign a request if it has to be signed."""
    return signed(value, SIGNERS[kind]) if kind in SIGNERS else value


@cache
def pickled_log() -> bytes:
    """That log, from which new ones are made: a deep copy takes four times as long."""
    return pickle.dumps(new_log())


class Judge:
    """Applies records to a log that is new again after each that is not refused."""

    def __init__(self) -> None:
        self.refused = 0
        self._begin_anew()
        self._before = self._state()

    def refuses(self, value: bytes) -> bool:
        """Whether a record is refused, by ledger and auditor alike."""
        self.log.send(value)
        refused = any(out.channel is Channel.REJECTS for out in self.log.outputs[-1])
        assert refused == (self.log.reason() is not None), value
        if not refused:
            self.end()
            self._begin_anew()
        self.refused += refused
        if self.refused % 16 == 0:
            self.has_no_trace()
        return refused

    def has_no_trace(self) -> None:
        """Of what was refused."""
        last = self.log.records[-16:]
        assert self._state() == self._before, f"one of the last, or one since applied: {last}"

    def end(self) -> None:
        """Everything was judged alike."""
        self.log.audit()

    def _begin_anew(self) -> None:
        self.log: RosterLog = pickle.loads(pickled_log())

    def _state(self) -> tuple[Any, ...]:
        ledger, members = self.log.ledger, self.log.ledger.state.rosters.members
        rosters = dict(ledger.state.rosters), {key: bytes(m.levels) for key, m in members.items()}
        return (
            *(
                ledger.summary(),
                ledger.state.unmerged(),
                dict(ledger.state.runs),
                collected_of(ledger),
                self.log.spent(),
            ),
            rosters,
        )


@pytest.fixture
def judge():
    judge = Judge()
    yield judge
    judge.has_no_trace()
    charged = judge.log.charge(1, [1, 2], [0.5, 1.0], attempt=2)
    assert charged.users == 2
    judge.end()


@ENCODINGS
@KINDS
def test_good_requests_are_applied(judge, kind, encoded):
    assert not judge.refuses(sealed(kind, encoded(good(kind))))


@pytest.mark.slow
@ENCODINGS
@KINDS
def test_any_value_in_any_field_is_judged_alike(judge, kind, encoded):
    record = good(kind)
    for field in [*record, "unknown"]:
        for value in VALUES if encoded is as_json else VALUES + IN_MSGPACK_ONLY:
            judge.refuses(sealed(kind, encoded({**record, field: value})))
        without = {name: value for name, value in record.items() if name != field}
        judge.refuses(sealed(kind, encoded(without)))
    assert judge.refused > 50 * len(record)


@pytest.mark.slow
@ENCODINGS
def test_any_value_in_any_field_of_a_policy_is_judged_alike(judge, encoded):
    record = good("create-dataset")
    policy = record["policy"]
    for field in [*policy, "unknown"]:
        without = {name: value for name, value in policy.items() if name != field}
        for other in [*({**policy, field: value} for value in VALUES), without]:
            judge.refuses(sealed("create-dataset", encoded({**record, "policy": other})))
    assert judge.refused > 50 * len(policy)


@ENCODINGS
@pytest.mark.parametrize("field", ["min_separation", "collect"])
def test_any_terms_of_a_run_are_judged_alike(judge, encoded, field):
    record = {**good("open-run"), "dataset": "c", "run": "new"}
    values = VALUES if encoded is as_json else VALUES + IN_MSGPACK_ONLY
    if field == "collect":
        values = [{"clip_norm": 1.0, "mechanism": value} for value in values]
        values += [{"clip_norm": value["mechanism"]} for value in values]
    for value in values:
        judge.refuses(encoded({**record, field: value}))
    assert judge.refused > 50


@pytest.mark.slow
@ENCODINGS
@KINDS
def test_request_that_is_cut_off_or_goes_on_is_malformed(judge, kind, encoded):
    value = encoded(good(kind))
    for wrong in [*(value[:length] for length in range(len(value))), value + b"\0", value + value]:
        assert judge.refuses(sealed(kind, wrong))
        assert judge.log.reason() == "malformed"
