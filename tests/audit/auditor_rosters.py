"""Rosters as the documents say they are, in integers: users in lists, positions in sets.

Nothing here knows what else a partition holds: ``Auditor`` asks for what it needs, in the order of
the reasons.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

from tests.audit.auditor_erasure import published
from tests.audit.auditor_requests import Rejection, User, numbers_of

Cost = tuple[int, ...]
"""Units, one number per order, else one."""

LARGEST_COST = 2**62
_DIGEST_USERS = 4096

TOO_SOON, ERASED = 254, 255
"""Reasons for which a user is halted, beside the number of the budget that refused."""


@dataclass
class Roster:
    """The users of a run in one partition, by position; sets hold positions."""

    clip_norm: float
    grid: int
    members: list[User] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    granted: list[int] = field(default_factory=list)  # by the last step; 0 to who was left out
    halted: set[int] = field(default_factory=set)  # not admitted last
    exhausted: set[int] = field(default_factory=set)  # said to have nothing left
    cost_table_digest: bytes = b""  # the digest
    prices: list[list[Cost]] = field(default_factory=list)  # in each budget that it counts against

    def check_follows(self, request: Mapping[str, Any], users: list[User]) -> list[User]:
        """Who of these users is not enrolled yet, if the others are those that are."""
        first = request["first"]
        if (self.clip_norm, self.grid) != (float(request["clip_norm"]), request["levels"]):
            raise Rejection("roster-changed")
        there = self.members[first : first + len(users)]
        if first > len(self.members) or there != users[: len(there)]:
            raise Rejection("roster-changed")
        return users[len(there) :]

    def prices_of(self, charge: Mapping[str, Any], orders: Sequence[int]) -> list[list[Cost]]:
        """What the levels cost in a step, in budgets of so many orders."""
        units = charge["units"]
        if not units:
            if charge["cost_table_digest"] != self.cost_table_digest:
                raise Rejection("invalid-cost-table")
            return self.prices
        numbers = sum(orders) * (self.grid + 1)
        if cost_table_digest(units) != charge["cost_table_digest"] or len(units) != 8 * numbers:
            raise Rejection("invalid-cost-table")
        return [self._checked_prices(prices) for prices in prices_in(units, self.grid, orders)]

    def _checked_prices(self, prices: list[Cost]) -> list[Cost]:
        falls = any(a > b for low, high in pairwise(prices) for a, b in zip(low, high, strict=True))
        if any(prices[0]) or falls or max(map(max, prices)) > LARGEST_COST:
            raise Rejection("invalid-cost-table")
        return prices

    def enrol(self, users: list[User]) -> None:
        """New members count as admitted, at the highest level."""
        self.members += users
        self.levels += [self.grid] * len(users)
        self.granted += [self.grid] * len(users)

    def levels_of(self, charge: Mapping[str, Any]) -> dict[int, int]:
        """The levels that a step sets, by position."""
        positions, levels = _words(charge["positions"]), list(charge["levels"])
        if levels and not positions:
            positions = list(range(len(self.members)))
        wrong = (
            len(positions) != len(levels)
            or any(low >= high for low, high in pairwise(positions))
            or any(position >= len(self.members) for position in positions)
            or any(level > self.grid for level in levels)
        )
        if wrong:
            raise Rejection("invalid-levels")
        return dict(zip(positions, levels, strict=True))

    def set_levels(self, moved: Mapping[int, int]) -> None:
        """From a step on."""
        for position, level in moved.items():
            self.levels[position] = level

    def tell(
        self,
        moved: Collection[int],
        granted: Sequence[int | None],
        exhausted: Sequence[bool],
        clips: bool,
    ) -> dict[str, Any]:
        """What changed with a step.

        Args:
            moved: whose levels it has set.
            granted: the level of each, None for who is left out.
            exhausted: who has nothing left after it.
            clips: whether a lower level may be granted, so that it has to be told.
        """
        halted = {position for position, level in enumerate(granted) if level is None}
        ended = {position for position, is_over in enumerate(exhausted) if is_over}
        afresh = {*moved, *self.halted}
        regranted = [
            (position, level)
            for position, level in enumerate(granted)
            if clips
            and level is not None
            and level != (self.levels if position in afresh else self.granted)[position]
        ]
        news = {
            "members": len(self.members),
            "halted": sorted(halted - self.halted),
            "readmitted": sorted(self.halted - halted),
            "exhausted": sorted(ended - self.exhausted),
            "regranted": [position for position, _ in regranted],
            "granted": [level for _, level in regranted],
        }
        self.halted, self.exhausted = halted, self.exhausted | ended
        self.granted = [level or 0 for level in granted]
        return news

    def said(self, erased: Collection[User]) -> dict[str, Any]:
        """The roster as it is, in the terms of the answer to an enrolment."""
        gone = [position for position, user in enumerate(self.members) if user in erased]
        blank = [
            user if user not in erased else 0 if str(user).startswith("erased:i:") else ""
            for user in self.members
        ]
        return {
            **({"erased": gone} if gone else {}),
            "members": len(self.members),
            "digests": user_digests(blank),
            "clip_norm": self.clip_norm,
            "grid": self.grid,
            "levels": list(self.levels),
            "granted": list(self.granted),
            "halted": sorted(self.halted),
            "exhausted": sorted(self.exhausted),
            "cost_table_digest": self.cost_table_digest,
        }


def prices_in(units: bytes, grid: int, orders: Sequence[int]) -> list[list[Cost]]:
    """Packed prices of every level, in budgets of so many orders, one after the other."""
    numbers, tables, start = numbers_of(units, "q"), [], 0
    for count in orders:
        end = start + count * (grid + 1)
        tables.append([tuple(numbers[i : i + count]) for i in range(start, end, count)])
        start = end
    return tables


def check_grid(clip_norm: float, levels: int) -> None:
    """Whether all norms of a grid differ."""
    norms = [_rounded_up(Fraction(clip_norm) * level / levels) for level in range(levels + 1)]
    if any(low >= high for low, high in pairwise(norms)):
        raise Rejection("invalid-levels")


def _rounded_up(number: Fraction) -> float:
    nearest = float(number)
    return nearest if Fraction(nearest) >= number else math.nextafter(nearest, math.inf)


def highest_that_fits(prices: Sequence[Cost], level: int, left: Cost) -> int | None:
    """What budget-aware clipping grants: the highest level, not above the one that is asked for.

    Level 0 is granted to whoever asks for it. To others it would be nothing.
    """
    highest = next(
        lower
        for lower in range(level, -1, -1)
        if all(units <= rest for units, rest in zip(prices[lower], left, strict=True))
    )
    return highest if highest or not level else None


def halted_in(
    decision: Mapping[str, Any],
    roster: Roster,
    names: Sequence[str],
    refused: Mapping[int, int],
    erased: Collection[User],
) -> dict[str, Any]:
    """The HALT events that are published beside a decision about a roster, as it is by then.

    Args:
        decision: which says who is halted.
        roster: of the run.
        names: of the datasets it counts against.
        refused: by position, which of them refused.
        erased: the names of those who were.
    """
    about = "v", "dataset", "run", "attempt", "step", "partition", "offset"
    halted = decision["halted"]
    return {
        "type": "halted",
        **{name: decision[name] for name in about},
        "users": published(roster.members[position] for position in halted),
        "exhausted": [position in roster.exhausted for position in halted],
        "reasons": [ERASED if roster.members[p] in erased else refused[p] for p in halted],
        "budgets": list(names),
    }


def content_of(charge: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes a step of a roster the same step; units are in it by their digest alone."""
    return (
        "charge-roster",
        charge["members"],
        charge["mechanism"],
        struct.pack("<dd", charge["scale"], charge["sampling_rate"]),
        charge["cost_table_digest"],
        charge["positions"],
        charge["levels"],
    )


def digest_of_roster(charge: Mapping[str, Any]) -> bytes:
    """By what a worker recognises a step of a roster."""
    head = (
        [charge[name] for name in ("dataset", "run", "step", "members", "mechanism")],
        [float(charge["scale"]), float(charge["sampling_rate"]), charge["cost_table_digest"]],
        [len(charge["positions"]), len(charge["levels"])],
    )
    content = msgspec.msgpack.encode(head) + charge["positions"] + charge["levels"]
    return hashlib.sha256(b"charge-roster" + content).digest()[:16]


def cost_table_digest(units: bytes) -> bytes:
    """By what a step names its cost table."""
    return hashlib.sha256(b"cost-table" + units).digest()[:16]


def user_digests(users: Sequence[User]) -> bytes:
    """By what a client recognises its roster."""
    return b"".join(
        _user_digest(tuple(users[i : i + _DIGEST_USERS]))
        for i in range(0, len(users), _DIGEST_USERS)
    )


@cache
def _user_digest(users: tuple[User, ...]) -> bytes:
    if all(type(user) is int for user in users):
        content = b"i" + struct.pack(f"<{len(users)}q", *users)
    else:
        content = b"s" + msgspec.msgpack.encode(users)
    return hashlib.sha256(content).digest()[:16]


def published_positions(packed: bytes, count: int) -> list[int]:
    """Positions among so many members as they are published, in the shorter of two forms."""
    form, content = packed[0], packed[1:]
    if form == 0:
        positions = _words(content)
    else:
        assert form == 1, packed
        assert len(content) == -(-count // 8)
        positions = [i for i in range(8 * len(content)) if content[i // 8] >> (i % 8) & 1]
    assert all(low < high for low, high in pairwise(positions))
    assert not positions or positions[-1] < count
    assert len(content) == min(4 * len(positions), -(-count // 8)), f"{packed!r} is not the shorter"
    return positions


def _words(packed: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(packed) // 4}I", packed))
