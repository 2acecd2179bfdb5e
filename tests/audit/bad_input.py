"""One table of bad input: what is written to `norms`, and the reason for which it is refused.

``tests/unit/ledger`` applies each case to a ledger and to the auditor; ``tests/integration`` writes
all of them to a real broker, for a real worker.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from tests.audit.auditor_rosters import cost_table_digest
from tests.audit.auditor_state import home
from tests.keys import allowing, signed

NAN, INF = math.nan, math.inf
PARTITIONS = 3
MIXED = {"user_ids": "mixed"}
PRICES = [0, 1, 4, 9, 16, 25]
"""Of the levels of a roster, in units."""


def units(*prices: int) -> bytes:
    """A cost table, packed."""
    return struct.pack(f"<{len(prices)}q", *prices)


@dataclass(frozen=True)
class ChargedRun:
    """A run of a dataset in partition 0: ``FIRST`` was charged as step 0, and step 1 is next."""

    dataset: str
    run: str
    users: list[int]  # four that live in partition 0; the last two were never charged

    def request(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Any request about the dataset."""
        return {"type": kind, "dataset": self.dataset, "request": "token", **fields}

    def about_run(self, kind: str, **changes: Any) -> dict[str, Any]:
        """A request about the run."""
        return self.request(kind, **{"run": self.run, "attempt": 1, **changes})

    def charge(self, **changes: Any) -> dict[str, Any]:
        """A charge of step 1 that must be accepted, unless the changes spoil it."""
        good = {
            "type": "charge",
            "dataset": self.dataset,
            "run": self.run,
            "attempt": 1,
            "step": 1,
            "users": self.users,
            "norms": [1.0] * len(self.users),
            "scale": 4.0,
        }
        return {**good, **changes}

    def first(self, **changes: Any) -> dict[str, Any]:
        """The charge of step 0."""
        return self.charge(**{"step": 0, "users": self.users[:2], "norms": [1.0, 0.5], **changes})

    def enrolment(self, **changes: Any) -> dict[str, Any]:
        """Enrols the first two users; done before a case that is about a roster."""
        good = {"first": 0, "users": self.users[:2], "clip_norm": 1.0, "levels": 5}
        return self.about_run("enrol", **{**good, **changes})

    def roster_step(self, **changes: Any) -> dict[str, Any]:
        """Step 1 of the roster, which must be accepted unless the changes spoil it."""
        changes.setdefault(
            "cost_table_digest", cost_table_digest(changes.get("units", units(*PRICES)))
        )
        good = {"step": 1, "members": 2, "units": units(*PRICES), "scale": 4.0}
        step = self.about_run("charge-roster", **{**good, **changes})
        del step["request"]
        return step

    def separated(self, kind: str, **changes: Any) -> dict[str, Any]:
        """A request about another run of the dataset, which has a minimum separation."""
        whole = {
            "open-run": self.about_run("open-run"),
            "charge": self.first(norms=[0.0, 0.0]),  # nobody takes part, nobody pays
            "enrol": self.enrolment(),
            "charge-roster": self.roster_step(),
        }[kind]
        return {**whole, "run": f"{self.run}-separated", **changes}

    def policy(self, **changes: Any) -> dict[str, Any]:
        """Creates another dataset, unless the changes spoil it."""
        policy = {
            "dataset": f"{self.dataset}-{self.run}",
            "partitions": PARTITIONS,
            "measure": "zcdp",
            "budget": [2**44],
            "odometer_step": [2**40],
            **changes,
        }
        return {"type": "create-dataset", "request": "token", "policy": policy}


@dataclass(frozen=True)
class BadInput:
    """A record that must be refused.

    Attributes:
        reason: why.
        record: what is written, after the first charge of the target.
        policy: that of the dataset that it is about.
        of_roster: the first users of the target are enrolled before it.
        is_separated: another run, which has a minimum separation, is opened and charged before it.
    """

    reason: str
    record: Callable[[ChargedRun], bytes | None]
    policy: dict[str, Any] = field(default_factory=lambda: MIXED)
    of_roster: bool = False
    is_separated: bool = False

    def before(self, target: ChargedRun) -> list[bytes]:
        """What is applied to a run that has been opened, before the record."""
        records = [target.first(), *([target.enrolment()] if self.of_roster else [])]
        if self.is_separated:
            records += [target.separated("open-run", min_separation=3), target.separated("charge")]
        return [as_msgpack(record) for record in records]


Change = Callable[[list[int]], dict[str, Any]]


def fill(user: int | str) -> Change:
    return lambda users: {"users": [*users[:3], user]}


def elsewhere(candidates: Iterable[int | str]) -> int | str:
    """The first of these that does not live in partition 0."""
    return next(user for user in candidates if home(user, PARTITIONS) != 0)


CHARGES: dict[str, tuple[str, Change]] = {
    "norm NaN": ("invalid-norm", lambda users: {"norms": [1.0, NAN, 1.0, 1.0]}),
    "norm infinite": ("invalid-norm", lambda users: {"norms": [1.0, INF, 1.0, 1.0]}),
    "norm negative": ("invalid-norm", lambda users: {"norms": [1.0, 1.0, 1.0, -1e-300]}),
    "packed norm NaN": (
        "invalid-norm",
        lambda users: {"norms": np.array([1.0, 1.0, 1.0, NAN]).tobytes()},
    ),
    "norm above clip_norm": ("norm-above-clip", lambda users: {"clip_norm": 0.9999}),
    "clip_norm NaN": ("invalid-norm", lambda users: {"clip_norm": NAN}),
    "clip_norm infinite": ("invalid-norm", lambda users: {"clip_norm": INF}),
    "clip_norm negative": ("invalid-norm", lambda users: {"clip_norm": -1.0}),
    "noise 0": ("invalid-mechanism", lambda users: {"scale": 0.0}),
    "noise negative": ("invalid-mechanism", lambda users: {"scale": -1.0}),
    "noise NaN": ("invalid-mechanism", lambda users: {"scale": NAN}),
    "noise infinite": ("invalid-mechanism", lambda users: {"scale": INF}),
    "Laplace scale 0": (
        "invalid-mechanism",
        lambda users: {"scale": 0.0, "mechanism": "laplace"},
    ),
    "noise 0, nobody charged": (
        "invalid-mechanism",
        lambda users: {"scale": 0.0, "users": [], "norms": []},
    ),
    "one norm too few": ("length-mismatch", lambda users: {"norms": [1.0] * 3}),
    "one norm too many": ("length-mismatch", lambda users: {"norms": [1.0] * 5}),
    "known user twice": ("duplicate-user", lambda users: {"users": [*users[:3], users[0]]}),
    "new user twice": ("duplicate-user", lambda users: {"users": [*users[:3], users[2]]}),
    "packed user twice": (
        "duplicate-user",
        lambda users: {"users": np.array([*users[:3], users[1]], dtype="<i8").tobytes()},
    ),
    "new user of another partition": ("wrong-partition", fill(elsewhere(range(10)))),
    "string user of another partition": ("wrong-partition", fill(elsewhere("abcdef"))),
    "unknown dataset": ("unknown-dataset", lambda users: {"dataset": "nobody-created-this"}),
    "run never opened": ("unknown-run", lambda users: {"run": "nobody-opened-this"}),
    "attempt never opened": ("unknown-run", lambda users: {"attempt": 2}),
    "step left out": ("step-out-of-order", lambda users: {"step": 2}),
    "step far ahead": ("step-out-of-order", lambda users: {"step": 2**53}),
    "last step with other content": ("step-content-changed", lambda users: {"step": 0}),
    "version 2": ("unsupported-version", lambda users: {"v": 2}),
    "version 0": ("unsupported-version", lambda users: {"v": 0}),
    "name not in normal form": ("malformed", fill("e\u0308")),
    "unknown type": ("malformed", lambda users: {"type": "refund"}),
    "packed users cut off": ("malformed", lambda users: {"users": bytes(31)}),
    "packed norms cut off": ("malformed", lambda users: {"norms": bytes(31)}),
}

SENT_AGAIN: dict[str, Change] = {
    "a norm": lambda users: {"norms": [1.0, math.nextafter(0.5, 0.0)]},
    "the order of the users": lambda users: {"users": users[1::-1]},
    "fewer users": lambda users: {"users": users[:1], "norms": [1.0]},
    "nobody": lambda users: {"users": [], "norms": []},
    "the noise": lambda users: {"scale": 4.5},
    "the mechanism": lambda users: {"mechanism": "laplace"},
    "a clip_norm": lambda users: {"clip_norm": 1.0},
    "a bad norm": lambda users: {"norms": [1.0, NAN]},
}

RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "closed in version 0": ("unsupported-version", "close-run", {"v": 0}),
    "closed under attempt 0": ("malformed", "close-run", {"attempt": 0}),
    "closed, never opened": ("unknown-run", "close-run", {"run": "never"}),
    "closed under an attempt never opened": ("unknown-run", "close-run", {"attempt": 9}),
    "closed in an unknown dataset": ("unknown-dataset", "close-run", {"dataset": "x"}),
    "opened under an attempt that another has": (
        "older-attempt",
        "open-run",
        {"attempt": 1, "request": "somebody else's"},
    ),
    "opened with a separation after its first step": (
        "separation-changed",
        "open-run",
        {"attempt": 2, "min_separation": 3},
    ),
}

SEPARATED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "opened with a wider one": (
        "separation-changed",
        "open-run",
        {"attempt": 2, "min_separation": 4},
    ),
    "opened with a narrower one under the same attempt": (
        "separation-changed",
        "open-run",
        {"min_separation": 2},
    ),
    "sent again with other content": ("step-content-changed", "charge", {"norms": [1.0, 0.25]}),
    "enrolled": ("no-rosters", "enrol", {}),
    "charged by roster": ("no-rosters", "charge-roster", {}),
}
"""About a run with a minimum separation, after its first step."""

DATASETS: dict[str, tuple[str, dict[str, Any]]] = {
    "withdrawn with a policy": ("malformed", {"policy": {}}),
    "withdrawn without a token": ("malformed", {"request": ""}),
    "withdrawn in use": ("dataset-in-use", {}),
}

LIST = allowing(alice="charge", mary="manage")
ALLOW = msgspec.to_builtins(LIST, builtin_types=(bytes,))


def _setting(target: ChargedRun, **changes: Any) -> dict[str, Any]:
    fields = {"number": 1, "allow": ALLOW, "log": bytes(16)}
    return {**target.request("set-access"), **fields, **changes}


SIGNED: dict[str, tuple[str, Callable[[ChargedRun], bytes | dict[str, Any]]]] = {
    "a list for an open dataset": ("not-allowed", _setting),
    "a list for an open dataset, signed": (
        "not-allowed",
        lambda target: signed(as_msgpack(_setting(target)), "mary"),
    ),
    "a list for no dataset": (
        "unknown-dataset",
        lambda target: _setting(target, dataset="nobody-created-this"),
    ),
    "a list without a manager": (
        "invalid-access",
        lambda target: _setting(target, allow=[{**ALLOW[0], "rights": ["charge"]}]),
    ),
    "a list with a key of small order": (
        "invalid-access",
        lambda target: _setting(target, allow=[{"key": bytes(32), "rights": ["manage"]}]),
    ),
    "a list with nothing in it": ("malformed", lambda target: _setting(target, allow=[])),
    "a list with too many keys": ("malformed", lambda target: _setting(target, allow=ALLOW * 17)),
    "a list with a key that is cut off": (
        "malformed",
        lambda target: _setting(target, allow=[{"key": bytes(31), "rights": ["manage"]}]),
    ),
    "signed twice": ("malformed", lambda target: signed(signed(good(target), "a"), "a")),
    "a signature that is cut off": (
        "malformed",
        lambda target: _sealed(target, signature=bytes(63)),
    ),
    "signed by a key that is cut off": ("malformed", lambda target: _sealed(target, key=bytes(31))),
    "signed, and nothing in it": ("malformed", lambda target: _sealed(target, request=b"")),
    "signed, and cut off in it": (
        "malformed",
        lambda target: _sealed(target, request=good(target)[:-1]),
    ),
    "signed, and of version 2 in it": (
        "unsupported-version",
        lambda target: _sealed(target, request=as_msgpack(target.charge(v=2))),
    ),
}


def _sealed(target: ChargedRun, **changes: Any) -> dict[str, Any]:
    whole = {"type": "signed", "request": good(target), "signature": bytes(64)}
    return {**whole, "key": bytes(32), **changes}


TWO_ORDERS = {"measure": "renyi", "budget": [1, 1], "odometer_step": [1, 1]}
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "renyi without orders": ("invalid-policy", {"measure": "renyi"}),
    "zcdp with orders": ("invalid-policy", {"orders": [2.0]}),
    "orders that do not increase": ("invalid-policy", {**TWO_ORDERS, "orders": [4.0, 2.0]}),
    "an order twice": ("invalid-policy", {**TWO_ORDERS, "orders": [2.0, 2.0]}),
    "an infinite order": ("invalid-policy", {"measure": "renyi", "orders": [INF]}),
    "one budget for two orders": (
        "invalid-policy",
        {"measure": "renyi", "orders": [2.0, 4.0], "odometer_step": [1, 1]},
    ),
    "two budgets for zcdp": ("invalid-policy", {"budget": [1, 1]}),
    "other partitions than the topic's": ("invalid-policy", {"partitions": 7}),
    "order 1": ("malformed", {"measure": "renyi", "orders": [1.0]}),
    "allow without a log": ("invalid-access", {"allow": ALLOW}),
}

MECHANISMS: dict[str, tuple[dict[str, Any], str]] = {
    "laplace under gdp": ({"measure": "gdp"}, "laplace"),
    "pure-dp under gdp": ({"measure": "gdp"}, "pure-dp"),
    "laplace where norms are clipped": ({"on_exhaustion": "clip"}, "laplace"),
    "pure-dp where norms are clipped": ({"on_exhaustion": "clip"}, "pure-dp"),
}

ENROLMENTS: dict[str, tuple[str, Change]] = {
    "other users at these positions": ("roster-changed", lambda users: {"users": users[1::-1]}),
    "one of them another user": ("roster-changed", lambda users: {"users": users[::2]}),
    "users after a gap": ("roster-changed", lambda users: {"first": 3, "users": users[2:]}),
    "nobody, after a gap": ("roster-changed", lambda users: {"first": 2**53, "users": []}),
    "another clip norm": ("roster-changed", lambda users: {"clip_norm": 1.5}),
    "another grid": ("roster-changed", lambda users: {"levels": 4}),
    "a member at another position": (
        "duplicate-user",
        lambda users: {"first": 2, "users": [users[2], users[0]]},
    ),
    "a user twice": ("duplicate-user", lambda users: {"first": 2, "users": [users[3]] * 2}),
    "a user of another partition": (
        "wrong-partition",
        lambda users: {"first": 2, "users": [users[2], elsewhere(range(10))]},
    ),
    "more users than at once": (
        "too-large",
        lambda users: {"first": 2, "users": bytes(8 * (2**19 + 1))},
    ),
    "packed users cut off": ("malformed", lambda users: {"users": bytes(31)}),
    "a name not in normal form": ("malformed", lambda users: {"users": ["e\u0308"]}),
    "a clip norm of 0": ("malformed", lambda users: {"clip_norm": 0.0}),
    "version 2": ("unsupported-version", lambda users: {"v": 2}),
    "a run never opened": ("unknown-run", lambda users: {"run": "nobody-opened-this"}),
    "an attempt never opened": ("unknown-run", lambda users: {"attempt": 2}),
}

ROSTER_STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "more members than there are": ("roster-changed", {"members": 3}),
    "fewer members than there are": ("roster-changed", {"members": 1}),
    "a digest of another cost table": ("invalid-cost-table", {"cost_table_digest": bytes(16)}),
    "a cost table that nobody has sent": (
        "invalid-cost-table",
        {"units": b"", "cost_table_digest": bytes(16)},
    ),
    "a cost table of too few levels": ("invalid-cost-table", {"units": units(*PRICES[:-1])}),
    "a cost table of too many levels": ("invalid-cost-table", {"units": units(*PRICES, 36)}),
    "a cost table of two orders": ("invalid-cost-table", {"units": units(*PRICES, *PRICES)}),
    "a cost table that falls": ("invalid-cost-table", {"units": units(0, 1, 4, 3, 16, 25)}),
    "a cost table that costs something at level 0": (
        "invalid-cost-table",
        {"units": units(1, 1, 4, 9, 16, 25)},
    ),
    "a cost table below 0": ("invalid-cost-table", {"units": units(-1, 1, 4, 9, 16, 25)}),
    "a cost table beyond the range": (
        "invalid-cost-table",
        {"units": units(*PRICES[:-1], 2**62 + 1)},
    ),
    "a cost table at the end of 64 bits": (
        "invalid-cost-table",
        {"units": units(*PRICES[:-1], 2**63 - 1)},
    ),
    "a level beyond the grid": ("invalid-levels", {"levels": b"\1\6"}),
    "the highest byte as a level": ("invalid-levels", {"levels": b"\xff\xff"}),
    "too few levels": ("invalid-levels", {"levels": b"\1"}),
    "too many levels": ("invalid-levels", {"levels": b"\1\1\1"}),
    "a level too many for the positions": (
        "invalid-levels",
        {"positions": b"\1\0\0\0", "levels": b"\1\1"},
    ),
    "positions without levels": ("invalid-levels", {"positions": bytes(4)}),
    "a position twice": ("invalid-levels", {"positions": bytes(8), "levels": b"\1\1"}),
    "positions that fall": (
        "invalid-levels",
        {"positions": struct.pack("<2I", 1, 0), "levels": b"\1\1"},
    ),
    "a position beyond the roster": (
        "invalid-levels",
        {"positions": struct.pack("<I", 2), "levels": b"\1"},
    ),
    "the last position of 32 bits": (
        "invalid-levels",
        {"positions": b"\xff" * 4, "levels": b"\1"},
    ),
    "a sampled step under zcdp": (
        "invalid-mechanism",
        {"mechanism": "poisson-gaussian", "sampling_rate": 0.1},
    ),
    "a sampling rate of steps that are not sampled": (
        "invalid-mechanism",
        {"sampling_rate": 0.1},
    ),
    "noise 0": ("invalid-mechanism", {"scale": 0.0}),
    "noise NaN": ("invalid-mechanism", {"scale": NAN}),
    "noise infinite": ("invalid-mechanism", {"scale": INF}),
    "a sampling rate of 0": ("malformed", {"sampling_rate": 0.0}),
    "packed units cut off": ("malformed", {"units": bytes(47)}),
    "packed positions cut off": ("malformed", {"positions": bytes(3), "levels": b"\1"}),
    "version 2": ("unsupported-version", {"v": 2}),
    "a run never opened": ("unknown-run", {"run": "nobody-opened-this"}),
    "an attempt never opened": ("unknown-run", {"attempt": 2}),
    "a step left out": ("step-out-of-order", {"step": 2}),
    "a step that was charged by norms": ("step-content-changed", {"step": 0}),
}

as_msgpack: Callable[[Any], bytes] = msgspec.msgpack.encode
as_json: Callable[[Any], bytes] = msgspec.json.encode


def good(target: ChargedRun) -> bytes:
    return as_msgpack(target.charge())


GARBAGE: dict[str, tuple[str, Callable[[ChargedRun], bytes | None]]] = {
    "not UTF-8": ("malformed", lambda target: b"\xff\xfe\xfd not UTF-8 \xc3\x28"),
    "JSON that is not UTF-8": ("malformed", lambda target: b'{"type": "\xff\xfe"}'),
    "dataset not UTF-8": (
        "malformed",
        lambda target: good(target).replace(
            target.dataset.encode(), b"\xff" * len(target.dataset), 1
        ),
    ),
    "too many users": (
        "too-large",
        lambda target: as_msgpack(target.charge(users=bytes(8 * (2**19 + 1)), norms=[])),
    ),
    "truncated": ("malformed", lambda target: good(target)[:-1]),
    "truncated in the middle": ("malformed", lambda target: good(target)[: len(good(target)) // 2]),
    "truncated JSON": ("malformed", lambda target: as_json(target.charge())[:-1]),
    "one byte too many": ("malformed", lambda target: good(target) + b"\x00"),
    "empty": ("malformed", lambda target: b""),
    "tombstone": ("malformed", lambda target: None),
    "a number": ("malformed", lambda target: as_msgpack(7)),
    "a deep nest": ("malformed", lambda target: b"\x91" * 100_000),
    "a deep nest of JSON": ("malformed", lambda target: b'{"a":' * 100_000),
    "an array that promises 4 billion users": ("malformed", lambda target: b"\xdd\xff\xff\xff\xff"),
    "JSON with NaN": (
        "malformed",
        lambda target: as_json(target.charge(norms=[7.0])).replace(b"7.0", b"NaN"),
    ),
    "JSON with a negative norm": (
        "invalid-norm",
        lambda target: as_json(target.charge(norms=[1.0, 1.0, 1.0, -1.0])),
    ),
    "5 MB of garbage": ("malformed", lambda target: np.random.default_rng(1).bytes(5_000_000)),
    "5 MB of text": ("malformed", lambda target: b"a" * 5_000_000),
    "one byte above the limit": ("too-large", lambda target: bytes(8 * 1024 * 1024 + 1)),
}


def _table() -> dict[str, BadInput]:
    table: dict[str, BadInput] = {}

    def add(
        name: str,
        reason: str,
        record: Callable[[ChargedRun], bytes | dict[str, Any] | None],
        encode: Callable[[Any], bytes] = as_msgpack,
        policy: dict[str, Any] = MIXED,
        of_roster: bool = False,
        is_separated: bool = False,
    ) -> None:
        def written(target: ChargedRun) -> bytes | None:
            value = record(target)
            return encode(value) if isinstance(value, dict) else value

        assert name not in table
        table[name] = BadInput(reason, written, policy, of_roster, is_separated)

    for name, (reason, change) in CHARGES.items():
        add(name, reason, lambda target, change=change: target.charge(**change(target.users)))
    for name, change in SENT_AGAIN.items():
        add(
            f"sent again with other content: {name}",
            "step-content-changed",
            lambda target, change=change: target.first(**change(target.users)),
        )
    for encode, form in ((as_msgpack, "msgpack"), (as_json, "json")):
        for name, (reason, kind, changes) in RUNS.items():
            add(
                f"{name}, {form}",
                reason,
                lambda target, kind=kind, changes=changes: target.about_run(kind, **changes),
                encode,
            )
        for name, (reason, changes) in DATASETS.items():
            add(
                f"{name}, {form}",
                reason,
                lambda target, changes=changes: target.request("withdraw-dataset", **changes),
                encode,
            )
        for kind in ("open-run", "close-run"):
            add(
                f"{kind} cut off, {form}",
                "malformed",
                lambda target, kind=kind, encode=encode: encode(target.about_run(kind))[:-1],
            )
    for name, (reason, kind, changes) in SEPARATED.items():
        add(
            f"separated participations: {name}",
            reason,
            lambda target, kind=kind, changes=changes: target.separated(kind, **changes),
            is_separated=True,
        )
    for name, (reason, change) in ENROLMENTS.items():
        add(
            f"enrolled: {name}",
            reason,
            lambda target, change=change: target.enrolment(**change(target.users)),
            of_roster=True,
        )
    add(
        "enrolled: a clip norm whose levels do not differ",
        "invalid-levels",
        lambda target: target.enrolment(clip_norm=5e-324),
    )
    add(
        "enrolled: a string among integers",
        "mixed-users",
        lambda target: target.enrolment(first=2, users=["a"]),
        policy={"user_ids": "integer"},
        of_roster=True,
    )
    for name, (reason, changes) in ROSTER_STEPS.items():
        add(
            f"charged by roster: {name}",
            reason,
            lambda target, changes=changes: target.roster_step(**changes),
            of_roster=True,
        )
    add("charged by roster: nobody is enrolled", "unknown-roster", ChargedRun.roster_step)
    for name, (reason, changes) in POLICIES.items():
        add(f"policy: {name}", reason, lambda target, changes=changes: target.policy(**changes))
    for name, (policy, mechanism) in MECHANISMS.items():
        add(
            name,
            "invalid-mechanism",
            lambda target, mechanism=mechanism: target.charge(mechanism=mechanism),
            policy=policy,
        )
        if "measure" in policy:
            continue  # a cost table can say what such a step costs
        add(
            f"charged by roster: {name}",
            "invalid-mechanism",
            lambda target, mechanism=mechanism: target.roster_step(mechanism=mechanism),
            policy=policy,
            of_roster=True,
        )
    for kinds in ("one-kind", "integer"):
        for strings in (1, 4):
            add(
                f"{strings} strings, ids are {kinds}",
                "mixed-users",
                lambda target, strings=strings: target.charge(
                    users=["a"] * strings + target.users[strings:]
                ),
                policy={"user_ids": kinds},
            )
    add(
        "policy: allow inside a dataset without a list",
        "invalid-access",
        lambda target: {**target.policy(parents=[target.dataset], allow=ALLOW), "log": bytes(16)},
    )
    for name, (reason, record) in SIGNED.items():
        add(f"who may: {name}", reason, record)
    for name, (reason, value) in GARBAGE.items():
        add(name, reason, value)
    return table


BAD_INPUT = _table()
