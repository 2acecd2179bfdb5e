"""Recurring charges the slow way: every user at every step, by the filter and the odometer alone.

Written apart from the code under test: one user at a time, in whole numbers of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from accounting.filters.account_terms import AccountTerms
from accounting.filters.roster_columns import SlotMap
from accounting.odometers import advance_units

REPORTED = ("halted", "refused_by", "readmitted", "exhausted", "regranted", "levels")


@dataclass
class Balances:
    spent: np.ndarray
    base: np.ndarray
    ticks: np.ndarray
    order: np.ndarray


class Columns:
    """The columns of a roster, as their owner has them."""

    def __init__(self, levels: Sequence[int] = ()) -> None:
        self.level = np.array(levels, dtype=np.uint8)
        self.granted, self.flags = self.level.copy(), np.zeros_like(self.level)
        self.since = np.zeros(len(levels), dtype=np.uint32)

    def grow(self, count: int) -> None:
        for name, column in list(vars(self).items()):
            setattr(self, name, np.append(column, np.zeros(count, dtype=column.dtype)))


def slot_maps(slots: Sequence[np.ndarray]) -> list[SlotMap]:
    maps = [SlotMap() for _ in slots]
    for known, rows in zip(maps, slots, strict=True):
        known.extend(rows)
    return maps


@dataclass
class Purse:
    """One user in one account."""

    spent: list[int]
    base: list[int]
    ticks: int = 1
    order: int = 0


@dataclass
class Book:
    """One account."""

    terms: AccountTerms
    purses: list[Purse]

    def indices(self, slot: int) -> list[int]:
        """Which budgets are this user's."""
        if self.terms.orders == "per-user":
            return [self.purses[slot].order]
        return list(range(len(self.terms.budgets)))

    def cost(self, slot: int, cost_table: np.ndarray, level: int) -> list[int]:
        row = np.atleast_1d(cost_table[level]).tolist()
        return [row[index] for index in self.indices(slot)]

    def fits(self, slot: int, cost: Sequence[int]) -> bool:
        budgets = [self.terms.budgets[index] for index in self.indices(slot)]
        spent = self.purses[slot].spent
        return all(s + c <= b for s, c, b in zip(spent, cost, budgets, strict=True))

    def exhausted(self, slot: int) -> bool:
        budgets = [self.terms.budgets[index] for index in self.indices(slot)]
        return any(s >= b for s, b in zip(self.purses[slot].spent, budgets, strict=True))

    def pay(self, slot: int, cost: Sequence[int]) -> bool:
        """Charge what fits; return whether the odometer rose."""
        purse = self.purses[slot]
        tick_sizes = [self.terms.tick_sizes[index] for index in self.indices(slot)]
        used = [s - b for s, b in zip(purse.spent, purse.base, strict=True)]
        left, ticks = advance_units(
            np.array([used]), np.array([purse.ticks]), np.array([cost]), tick_sizes
        )
        purse.spent = [s + c for s, c in zip(purse.spent, cost, strict=True)]
        purse.base = [s - u for s, u in zip(purse.spent, left[0].tolist(), strict=True)]
        risen, purse.ticks = int(ticks[0]) != purse.ticks, int(ticks[0])
        return risen


@dataclass
class Roll:
    """A roster: for each position a slot in each book, a level, and what the last step said."""

    books: list[Book]
    slots: list[list[int]]
    levels: list[int]
    clip: bool
    halted: list[bool] = field(default_factory=list)
    exhausted: list[bool] = field(default_factory=list)
    granted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._fill()

    def _fill(self) -> None:
        for column, first in ((self.halted, False), (self.exhausted, False)):
            column.extend([first] * (len(self.levels) - len(column)))
        self.granted.extend(self.levels[len(self.granted) :])

    def enrol(self, slots: list[list[int]], levels: list[int]) -> None:
        for known, more in zip(self.slots, slots, strict=True):
            known.extend(more)
        self.levels.extend(levels)
        self._fill()

    def step(
        self, cost_tables: Sequence[np.ndarray], listed: dict[int, int] | None = None
    ) -> dict[str, list]:
        listed = listed or {}
        news: dict[str, list] = {name: [] for name in REPORTED}
        news["raised"] = [[] for _ in self.books]
        for position, level in listed.items():
            self.levels[position] = level
        for position in range(len(self.levels)):
            asked = self.levels[position]
            where = [slots[position] for slots in self.slots]

            def refusers(level: int, where: list[int] = where) -> list[int]:
                return [
                    index
                    for index, (book, slot, cost_table) in enumerate(
                        zip(self.books, where, cost_tables, strict=True)
                    )
                    if not book.fits(slot, book.cost(slot, cost_table, level))
                ]

            granted, refused_by = asked, refusers(asked)
            nothing = refusers(1)  # of these accounts alone nothing would be granted
            if refused_by:
                granted = 0
                while self.clip and not refusers(granted + 1):
                    granted += 1
            for index, (book, slot, cost_table) in enumerate(
                zip(self.books, where, cost_tables, strict=True)
            ):
                before = book.purses[slot].ticks
                if book.pay(slot, book.cost(slot, cost_table, granted)):
                    news["raised"][index].append((position, before))
            halted = granted == 0 and asked > 0
            if halted and not self.halted[position]:
                news["halted"].append(position)
                news["refused_by"].append(nothing[0] if self.clip else refused_by[0])
            if self.halted[position] and not halted:
                news["readmitted"].append(position)
            exhausted = any(
                book.exhausted(slot) for book, slot in zip(self.books, where, strict=True)
            )
            if exhausted and not self.exhausted[position]:
                news["exhausted"].append(position)
            afresh = position in listed or self.halted[position]
            believed = asked if afresh else self.granted[position]
            if not halted and granted != believed:
                news["regranted"].append(position)
                news["levels"].append(granted)
            self.halted[position], self.exhausted[position] = halted, exhausted
            self.granted[position] = granted
        return news
