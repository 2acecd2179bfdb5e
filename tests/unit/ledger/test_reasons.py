"""Of several reasons to refuse a request the first one in the order of ``Reason`` is given.

The auditor checks in an order of its own writing, so that this is a contract and not a habit.
"""

from collections.abc import Iterable
from itertools import combinations_with_replacement
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

from streams.ledger import collecting, validation
from streams.records import VERSION, CloseDataset, CollectTerms, Erase, Reason
from streams.records.digests import NO_TOPIC, cost_table_digest
from streams.records.users import partitions_of
from tests.audit import auditor_charges, auditor_collecting
from tests.keys import allowing, setting, signed
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.roster_logs import CLIP, LEVELS, RosterLog, prices

HOMES = partitions_of(np.arange(1000), 2)
HERE = [int(user) for user in np.flatnonzero(HOMES == 0)]
THERE = [int(user) for user in np.flatnonzero(HOMES == 1)]


LIST, BYTES = allowing(mary="manage"), (bytes,)


@pytest.fixture(scope="module")
def log():
    """A dataset whose runs have come to step 0 under attempt 2, with and without a roster.

    The runs r and full of another dataset have collected norms for step 1, and full too many.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "MAX_CHARGE_USERS", 60)
        patch.setattr(auditor_charges, "_MOST_USERS", 60)
        patch.setattr(collecting, "MAX_COLLECTED", 2)
        patch.setattr(auditor_charges, "_MOST_COLLECTED", 2)
        patch.setattr(collecting, "MAX_EVENTS", 60)
        patch.setattr(auditor_collecting, "_MOST_EVENTS", 60)
        log = RosterLog(partitions=2)
        log.create("c", user_ids="integer")
        for run in ("r", "full", "bare", "closed"):
            fields = {} if run == "bare" else {"collect": CollectTerms(clip_norm=0.5)}
            log.open("c", run, attempt=2, min_separation=3, **fields)
            users = HERE[9:10] if run == "bare" else []
            log.charge(0, users, [0.1] * len(users), dataset="c", run=run, attempt=2)
        log.close("c", "closed", attempt=2)
        log.send(Erase(request="t", user=HERE[9], dataset="c"))
        for run, number in (("r", 1), ("full", 3)):
            users, norms = HERE[:number], [0.1] * number
            about = {"type": "norms", "dataset": "c", "run": run, "step": 1}
            log.send(msgspec.json.encode({**about, "users": users, "norms": norms}))
        log.create()
        for run in ("r", "bare", "closed"):
            log.open(run=run, attempt=2)
            log.charge(0, HERE[:2], [0.1, 0.1], run=run, attempt=2)
        for run in ("r", "closed"):
            log.enrol(HERE[:3], run=run, attempt=2)
        log.close(run="closed", attempt=2)
        log.create("idle")
        log.create("ended")
        log.send(CloseDataset(dataset="ended", request="t"))
        log.open(run="separated", attempt=2, min_separation=3)
        log.charge(0, HERE[:2], [0.1, 0.1], run="separated", attempt=2)
        # Another run has taken this budget over from all of these.
        log.create("held", assume_independent_timing=UNSET)
        for run in ("closed", "bare", "separated", "r", "holder"):
            fields = {"min_separation": 3} if run == "separated" else {}
            log.open("held", run, attempt=2, take_over=True, **fields)
            log.charge(0, HERE[:2], [0.1, 0.1], dataset="held", run=run, attempt=2)
        log.close("held", "closed", attempt=2)
        log.create("shared")
        log.create("share", share_of="shared")
        for name in ("guarded", "guarded-ended"):
            log.create(name, allow=LIST)
        log.send(signed(setting("guarded", 1, LIST), "mary"))
        log.send(signed(CloseDataset(dataset="guarded-ended", request="t"), "mary"))
        yield log


def more(record: dict[str, Any], users: list[int | str], norm: float = 0.1) -> None:
    record["users"] = [*record["users"], *users]
    record["norms"] = [*record["norms"], *[norm] * len(users)]


def guarded(record: dict[str, Any]) -> None:
    """Have it be about a dataset that names who may, which no sender here is."""
    ended = "-ended" if record["dataset"] == "ended" else ""
    record["dataset"] = f"guarded{ended}"


READING = {Reason.UNSUPPORTED_VERSION: {"v": VERSION + 1}, Reason.MALFORMED: {"discount": 1}}
ABOUT_RUN: dict[Reason, Any] = {
    **READING,
    Reason.UNKNOWN_DATASET: {"dataset": "nobody-created-this"},
    Reason.NOT_ALLOWED: guarded,
    Reason.UNKNOWN_RUN: {"attempt": 9},
    Reason.RUN_CLOSED: {"run": "closed"},
    Reason.OLDER_ATTEMPT: {"attempt": 1},
    Reason.BUDGET_HELD: {"dataset": "held", "run": "r"},
}
ABOUT_STEP = {
    **ABOUT_RUN,
    Reason.STEP_CONTENT_CHANGED: {"step": 0},
    Reason.STEP_OUT_OF_ORDER: {"step": 7},
    Reason.INVALID_MECHANISM: {"scale": 0.0},
}


def more_users(record: dict[str, Any]) -> None:
    more(record, HERE[10:75])


def more_norms(record: dict[str, Any]) -> None:
    record["norms"] = [*record["norms"], 0.1]


IMPOSSIBLE = [
    {Reason.UNKNOWN_DATASET, Reason.DATASET_CLOSED},
    {Reason.UNKNOWN_DATASET, Reason.NOT_ALLOWED},
    {Reason.UNKNOWN_RUN, Reason.OLDER_ATTEMPT},
    {Reason.STEP_CONTENT_CHANGED, Reason.STEP_OUT_OF_ORDER},
]


def by_the_first(pairs: Iterable[tuple[str, ...]]) -> list[Any]:
    """Those that begin alike are one test, on one log: what is refused leaves no trace."""
    found: dict[tuple[str, ...], list[str]] = {}
    for *first, second in pairs:
        found.setdefault(tuple(first), []).append(second)
    return [pytest.param(*first, found[first], id="-".join(first)) for first in found]


SIGNERS = {"set-access": "mary"}
"""The keys that sign requests which no other key may send."""


def reasons(log: AuditedLog, record: dict[str, Any]) -> tuple[str, str]:
    """Why the ledger and the auditor refuse a record, which is signed if it has to be."""
    fields = dict(record)
    key = fields.pop("signed by", SIGNERS.get(record["type"]))
    value = msgspec.msgpack.encode(fields)
    log.send(value if key is None else signed(value, key))
    rejected = msgspec.msgpack.decode(log.outputs[-1][0].value)
    return rejected.get("reason", "nothing"), log.reason() or "nothing"


POLICY = {"dataset": "d", "partitions": 2, "measure": "zcdp", "budget": [1], "odometer_step": [1]}
OTHERS: dict[str, tuple[dict[str, Any], dict[Reason, Any]]] = {
    "create-dataset": (
        {"policy": POLICY},
        {
            **READING,
            Reason.INVALID_POLICY: {"policy": {**POLICY, "partitions": 3}},
            Reason.POLICY_CHANGED: {},
        },
    ),
    "withdraw-dataset": (
        {"dataset": "idle"},
        {
            **READING,
            Reason.NOT_ALLOWED: {"dataset": "guarded"},
            Reason.DATASET_IN_USE: {"dataset": "d"},
        },
    ),
    "open-run": (
        {"dataset": "d", "run": "r", "attempt": 2},
        {
            **READING,
            Reason.UNKNOWN_DATASET: {"dataset": "nobody-created-this"},
            Reason.NOT_ALLOWED: {"dataset": "guarded"},
            Reason.DATASET_SHARED: {"dataset": "shared"},
            Reason.RUN_CLOSED: {"run": "closed"},
            Reason.OLDER_ATTEMPT: {"run": "r", "attempt": 1},
            Reason.SEPARATION_CHANGED: {"run": "r", "attempt": 3, "min_separation": 4},
            Reason.BUDGET_HELD: {"dataset": "held", "attempt": 3},
            Reason.COLLECT_CHANGED: {"run": "r", "attempt": 3, "collect": {"clip_norm": 1.0}},
            Reason.INVALID_MECHANISM: {
                "run": "new",
                "collect": {"clip_norm": 1.0, "mechanism": "poisson-gaussian"},
            },
            Reason.MIXED_USERS: {"run": "new", "collect": {"clip_norm": 1.0}},
        },
    ),
    "close-run": (
        {"dataset": "d", "run": "r", "attempt": 2},
        {
            **READING,
            Reason.UNKNOWN_DATASET: {"dataset": "nobody-created-this"},
            Reason.NOT_ALLOWED: {"dataset": "guarded"},
            Reason.UNKNOWN_RUN: {"run": "nobody-opened-this"},
            Reason.OLDER_ATTEMPT: {"attempt": 1},
        },
    ),
    "set-access": (
        {"dataset": "guarded", "number": 9, "allow": msgspec.to_builtins(LIST, builtin_types=BYTES)}
        | {"log": NO_TOPIC},
        {
            **READING,
            Reason.INVALID_ACCESS: {"allow": [{"key": bytes(32), "rights": ["manage"]}]},
            Reason.UNKNOWN_DATASET: {"dataset": "nobody-created-this"},
            Reason.NOT_ALLOWED: {"signed by": "somebody else"},
            Reason.SUPERSEDED: {"number": 0},
        },
    ),
    "retire": (
        {"successor": bytes(16), "partitions": 3, "agreement": bytes(32)},
        {
            **READING,
            Reason.NOT_ALLOWED: {},
        },
    ),
    "import": (
        {"origin": bytes(16), "partitions": 3},
        {
            **READING,
            Reason.LOG_CHANGED: {},
        },
    ),
}


NORMS: dict[Reason, dict[str, Any]] = {
    **READING,
    Reason.UNKNOWN_DATASET: {"dataset": "nobody-created-this"},
    Reason.NOT_ALLOWED: {"dataset": "guarded"},
    Reason.DATASET_CLOSED: {"dataset": "ended"},
    Reason.UNKNOWN_RUN: {"attempt": 9},
    Reason.RUN_CLOSED: {"run": "closed"},
    Reason.OLDER_ATTEMPT: {"attempt": 1},
    Reason.STEP_OUT_OF_ORDER: {"step": 4},
    Reason.NOT_COLLECTING: {"run": "bare"},
    Reason.STEP_DECIDED: {"step": 0},
    Reason.MIXED_USERS: {"user": "a"},
    Reason.INVALID_NORM: {"norm": -1.0},
    Reason.NORM_ABOVE_CLIP: {"norm": 0.6},
    Reason.WRONG_PARTITION: {"user": THERE[0]},
    Reason.USER_ERASED: {"user": HERE[9]},
    Reason.NORM_CHANGED: {"user": HERE[0], "norm": 0.2},
    Reason.TOO_MANY_NORMS: {"run": "full"},
}


def of_events(fields: dict[str, Any]) -> dict[str, Any]:
    """The same of a record with several events, of which there is one."""
    names = {"user": "users", "norm": "norms"}
    return {names.get(n, n): [v] if n in names else v for n, v in fields.items()}


OF_RUNS: dict[str, tuple[dict[str, Any], dict[Reason, Any]]] = {
    "charge": (
        {"step": 1, "users": HERE[:3], "norms": [0.1, 0.2, 0.3], "scale": 4.0, "clip_norm": 0.5},
        ABOUT_STEP
        | {
            Reason.DATASET_CLOSED: {"dataset": "ended"},
            Reason.TOO_LARGE: more_users,
            Reason.LENGTH_MISMATCH: more_norms,
            Reason.MIXED_USERS: lambda r: more(r, ["a"]),
            Reason.INVALID_NORM: lambda r: more(r, HERE[5:6], -1.0),
            Reason.NORM_ABOVE_CLIP: lambda r: more(r, HERE[6:7], 0.6),
            Reason.DUPLICATE_USER: lambda r: more(r, HERE[:1]),
            Reason.WRONG_PARTITION: lambda r: more(r, THERE[:1]),
        },
    ),
    "norm": ({"dataset": "c", "step": 1, "user": HERE[7], "norm": 0.1}, NORMS),
    "norms": (
        {"dataset": "c", "step": 1, "users": HERE[7:8], "norms": [0.1]},
        {reason: of_events(fields) for reason, fields in NORMS.items()}
        | {Reason.TOO_LARGE: more_users, Reason.LENGTH_MISMATCH: more_norms},
    ),
    "collected": (
        {
            "type": "charge",
            "dataset": "c",
            "step": 1,
            "users": [],
            "norms": [],
            "scale": 4.0,
            "collected": True,
        },
        ABOUT_STEP
        | {
            Reason.NOT_COLLECTING: {"run": "bare"},
            Reason.COLLECT_CHANGED: {"clip_norm": 0.6},
            Reason.TOO_LARGE: more_users,
            Reason.LENGTH_MISMATCH: more_norms,
            Reason.TOO_MANY_NORMS: {"run": "full"},
        },
    ),
    "enrol": (
        {"request": "t", "first": 3, "users": HERE[5:7], "clip_norm": CLIP, "levels": LEVELS},
        ABOUT_RUN
        | {
            Reason.NOT_COLLECTING: {"dataset": "c", "run": "r"},
            Reason.NO_ROSTERS: {"run": "separated"},
            Reason.ROSTER_CHANGED: {"first": 7},
            Reason.TOO_LARGE: {"users": HERE[10:75]},
            Reason.INVALID_LEVELS: {"run": "bare", "first": 0, "clip_norm": 5e-324},
            Reason.MIXED_USERS: lambda r: r.update(users=[*r["users"], "a"]),
            Reason.DUPLICATE_USER: lambda r: r.update(users=[*r["users"], HERE[0]]),
            Reason.WRONG_PARTITION: lambda r: r.update(users=[*r["users"], THERE[0]]),
        },
    ),
    "charge-roster": (
        {
            "step": 1,
            "members": 3,
            "units": prices(),
            "cost_table_digest": cost_table_digest(prices()),
            "levels": bytes([1, 2, 3]),
            "scale": 4.0,
        },
        ABOUT_STEP
        | {
            Reason.NO_ROSTERS: {"run": "separated"},
            Reason.UNKNOWN_ROSTER: {"run": "bare"},
            Reason.ROSTER_CHANGED: {"members": 4},
            Reason.INVALID_COST_TABLE: {"cost_table_digest": bytes(16)},
            Reason.INVALID_LEVELS: {"levels": bytes([1, 2, LEVELS + 1])},
        },
    ),
}
CHANGES = {
    kind: {reason: table[reason] for reason in Reason if reason in table}
    for kind, (_, table) in (OTHERS | OF_RUNS).items()
}
PAIRS = [
    (kind, *pair)
    for kind, table in CHANGES.items()
    for pair in combinations_with_replacement(table, 2)
    if set(pair) not in IMPOSSIBLE
]


def changed(kind: str, *changes: Any) -> dict[str, Any]:
    """Return a record that would be applied, with these changes."""
    about = {"type": kind, "dataset": "d", "run": "r", "attempt": 2}
    if kind in OTHERS:
        about = {"type": kind} | ({} if kind == "import" else {"request": "t"})
    record = {**about, **(OTHERS | OF_RUNS)[kind][0]}
    for change in changes:
        change(record) if callable(change) else record.update(change)
    return record


@pytest.mark.parametrize(("kind", "first", "others"), by_the_first(PAIRS))
def test_the_first_of_two_reasons_is_given(log, kind, first, others):
    for second in others:
        reasons_in_order = dict.fromkeys((second, first))  # or one reason by itself
        record = changed(kind, *(CHANGES[kind][reason] for reason in reasons_in_order))
        assert reasons(log, record) == (first, first), second


CUT: list[tuple[str, Any]] = [
    ("charge", {"users": bytes(31)}),
    ("charge", {"norms": bytes(31)}),
    ("charge", lambda r: more(r, ["e\u0308"])),
    ("enrol", {"users": bytes(31)}),
    ("enrol", {"users": [1, "e\u0308"]}),
    ("norm", {"user": "e\u0308"}),
    ("norms", {"norms": bytes(31)}),
    ("charge-roster", {"units": bytes(31)}),
    ("charge-roster", {"positions": bytes(15), "levels": bytes(3)}),
]


@pytest.mark.parametrize(("kind", "cut"), CUT)
def test_packed_arrays_and_names_are_looked_at_first(log, kind, cut):
    for second, change in CHANGES[kind].items():
        expected = min(second, Reason.MALFORMED, key=list(Reason).index)
        assert reasons(log, changed(kind, change, cut)) == (expected, expected), second


def test_oversized_records_are_not_decoded(log):
    record = changed("charge", {"v": VERSION + 1, "padding": bytes(8 * 1024 * 1024)})
    assert reasons(log, record) == (Reason.TOO_LARGE, Reason.TOO_LARGE)


def test_every_reason_is_in_a_table():
    assert {reason for table in CHANGES.values() for reason in table} == {*Reason} - {
        Reason.LOG_RETIRED
    }
