"""The activity of a service, from its records: the steps of runs and the spending of users.

Only counts are kept, and no user ids. The counts are still data about people, and confidential.

The distribution of spending is the number of users in each eighth of the budget. It comes from
odometers, which are upper bounds and rise in ticks. If there are many users, a sample represents
them; a keyed hash of the id chooses it, independently of the spending.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from streams.records import (
    Answer,
    Decision,
    OdometerRecord,
    RosterDecision,
    RunClosed,
    odometer_key,
)
from streams.records.packing import unpack_positions

RATE_OVER = 30.0
"""The seconds over which the rate of steps is measured."""
MOST_RUNS = 200
"""The number of runs that are kept: those that were decided last."""


@dataclass
class _Counts:
    """The counts of one partition after its last step that was read."""

    step: int = -1
    users: int = 0
    halted: int = 0
    exhausted: int = 0


@dataclass
class _Run:
    partitions: dict[int, _Counts] = field(default_factory=dict)
    attempt: int = 0
    step: int = -1
    first: int = 0  # step that was read; a roster's earlier halts are not counted
    is_roster: bool = False
    is_closed: bool = False
    moved: float = 0.0  # when the last step was decided
    steps: deque[float] = field(default_factory=deque)


class Activity:
    """The activity of all runs, from the records of the topic halts."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[str, str], _Run] = OrderedDict()

    def see(self, answer: Answer, written: float) -> None:
        """Count a record; repeated records do not count."""
        if isinstance(answer, RunClosed):
            if run := self._runs.get((answer.dataset, answer.run)):
                run.is_closed = True
            return
        if not isinstance(answer, Decision | RosterDecision):
            return
        name = answer.dataset, answer.run
        run = self._runs.setdefault(name, _Run(first=answer.step))
        counts = run.partitions.setdefault(answer.partition, _Counts())
        if answer.step <= counts.step:
            return  # a repeated step
        counts.step = answer.step
        if isinstance(answer, Decision):
            counts.users = answer.users
            counts.halted = answer.users - _bits(answer.admitted)
            counts.exhausted = _bits(answer.exhausted)
        else:
            _count(counts, answer)
            run.is_roster = True
        run.attempt = max(run.attempt, answer.attempt)
        if answer.step > run.step:
            run.step, run.moved = answer.step, written
            run.steps.append(written)
        self._runs.move_to_end(name)
        while len(self._runs) > MOST_RUNS:
            self._runs.popitem(last=False)

    def runs(self, now: float) -> list[dict[str, Any]]:
        """Return all runs, the fastest first."""
        shown = [
            {"dataset": dataset, "run": name, **_fields(run, now)}
            for (dataset, name), run in list(self._runs.items())
        ]
        return sorted(shown, key=lambda run: (-run["rate"], -run["moved"]))


def _fields(run: _Run, now: float) -> dict[str, Any]:
    while run.steps and run.steps[0] < now - RATE_OVER:
        run.steps.popleft()
    counts = list(run.partitions.values())
    halted = sum(one.halted for one in counts)
    users = sum(one.users for one in counts)
    return {
        "attempt": run.attempt,
        "step": run.step,
        "rate": len(run.steps) / RATE_OVER,
        "active": users - halted,
        "halted": halted,
        "exhausted": sum(one.exhausted for one in counts),
        # Roster decisions contain changes; changes before the first step that was read are unknown.
        "counted_from": run.first if run.is_roster and run.first else None,
        "closed": run.is_closed,
        "moved": run.moved,
    }


def _count(counts: _Counts, answer: RosterDecision) -> None:
    packed = answer.halted, answer.readmitted, answer.exhausted
    halted, readmitted, exhausted = (len(unpack_positions(p, answer.members)) for p in packed)
    counts.users = answer.members
    counts.halted = max(0, counts.halted + halted - readmitted)
    counts.exhausted += exhausted


def _bits(packed: bytes) -> int:
    return int.from_bytes(packed, "little").bit_count()


PARTS = 8
"""By default, odometers rise by an eighth of the budget."""
_ROUNDING = 1e-6
"""Bounds are rounded up, so a bound of an eighth can be a little above it."""
MOST_USERS = 200_000
"""The users that are kept; above this number, the sample is halved."""


class Spending:
    """The spending of the users of all datasets."""

    def __init__(self, most_users: int = MOST_USERS) -> None:
        self._most = most_users
        self._key = secrets.token_bytes(16)
        self._parts: dict[int, tuple[str, int]] = {}
        self._one_in = 1

    def see(self, odometer: OdometerRecord, share: float) -> None:
        """Count an odometer record. The order and repetitions do not matter: bounds never fall.

        Args:
            odometer: the odometer record of a user.
            share: the spent share of the budget, 0 to 1.
        """
        name = odometer_key(odometer.dataset, odometer.user)
        digest = hashlib.blake2b(name, digest_size=8, key=self._key).digest()
        user = int.from_bytes(digest, "big")
        if user % self._one_in:
            return
        part = min(PARTS - 1, max(0, ceil(share * PARTS - _ROUNDING) - 1))
        known = self._parts.get(user)
        self._parts[user] = odometer.dataset, max(part, known[1] if known else 0)
        while len(self._parts) > self._most:
            self._one_in *= 2
            kept = {user: at for user, at in self._parts.items() if user % self._one_in == 0}
            self._parts = kept

    def distribution(self, users: Mapping[str, int]) -> list[dict[str, Any]]:
        """Return, for each dataset, the number of users in every eighth of the budget.

        Args:
            users: the number of users of each dataset. Users without an odometer record are in
                the first eighth.
        """
        counts = Counter(list(self._parts.values()))
        return [
            _dataset(name, count, counts, self._one_in) for name, count in sorted(users.items())
        ]


def _dataset(
    name: str, users: int, counts: Mapping[tuple[str, int], int], one_in: int
) -> dict[str, Any]:
    parts = [one_in * counts.get((name, part), 0) for part in range(PARTS)]
    return {
        "dataset": name,
        "parts": _with_the_rest(parts, users),
        "users": users,
        "one_in": one_in,
    }


def _with_the_rest(parts: Iterable[int], users: int) -> list[int]:
    first, *others = parts
    return [max(first, users - sum(others)), *others]
