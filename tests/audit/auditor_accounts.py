"""What users have spent under a policy, and what is left, in rational arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

from tests.audit.auditor_requests import User, kind_of
from tests.audit.auditor_rosters import LARGEST_COST, Cost

UNIT = 2**44
MOST_TICKS = 2**61
"""An odometer counts no further: any budget is less."""


@lru_cache(maxsize=1 << 18)
def exact_cost(measure: str, mechanism: str, scale: float, norm: float) -> Fraction:
    """What a norm costs, in units, before rounding; of renyi at the order 1."""
    divisor = Fraction(1) if mechanism == "pure-dp" else Fraction(scale)
    ratio = Fraction(norm) / divisor
    if measure == "pure-dp":
        return ratio * UNIT
    return (ratio**2 if measure == "gdp" else ratio**2 / 2) * UNIT


@lru_cache(maxsize=1 << 18)
def _cost(
    measure: str, orders: tuple[float, ...], mechanism: str, scale: float, norm: float
) -> tuple[int, ...]:
    units = min(math.ceil(exact_cost(measure, mechanism, scale, norm)), LARGEST_COST)
    if measure != "renyi":
        return (units,)
    most = LARGEST_COST
    if mechanism != "gaussian":  # a pure DP step costs its epsilon at most, at every order
        most = _cost("pure-dp", (), mechanism, scale, norm)[0]
    return tuple(min(math.ceil(Fraction(order) * units), most) for order in orders)


@lru_cache(maxsize=1 << 10)
def _usable(budget: tuple[int, ...], reserve: float) -> tuple[int, ...]:
    """Return the budget without the share of it that has to remain."""
    return tuple(units - math.ceil(units * Fraction(reserve)) for units in budget)


@dataclass
class Account:
    """One user of one dataset; one number per order, else one."""

    spent: tuple[int, ...]
    used: tuple[int, ...]  # since the odometer restarted last
    ticks: int = 1
    order: int | None = None  # the place of the one that the user is bound to, if to one alone

    def pay(self, cost: tuple[int, ...], steps: tuple[int, ...]) -> None:
        """Charge a cost that was granted; the odometer may rise (Alg. 5, with restarts)."""
        self.spent = tuple(map(sum, zip(self.spent, cost, strict=True)))
        total = tuple(map(sum, zip(self.used, cost, strict=True)))
        if all(units <= step for units, step in zip(total, steps, strict=True)):
            self.used = total
            return
        climb = max(-(-units // step) for units, step in zip(cost, steps, strict=True))
        climbed = self.ticks + (climb if any(self.used) else climb - 1)
        self.ticks = min(climbed, MOST_TICKS)
        self.used = tuple(
            max(units - (climb - 1) * step, 0) for units, step in zip(cost, steps, strict=True)
        )

    def bound(self, dataset: Dataset) -> tuple[int, ...]:
        """What the odometer says: never above the budget, which the filter keeps."""
        return tuple(
            min(self.ticks * step, budget)
            for step, budget in zip(
                dataset.at_orders(self, dataset.steps),
                dataset.at_orders(self, dataset.budget),
                strict=True,
            )
        )


@dataclass
class Dataset:
    """A policy and its users, in one partition."""

    policy: dict[str, Any]
    accounts: dict[User, Account] = field(default_factory=dict)
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.budget = tuple(self.policy["budget"])
        self.steps = tuple(self.policy["odometer_step"])
        self.orders = tuple(map(float, self.policy["orders"]))
        self.measure = self.policy["measure"]
        self.kinds = self.policy["user_ids"]
        self.binds = self.policy["per_user_order"] is True

    def has_room_for(self, users: list[User]) -> bool:
        """Whether ids of this kind belong to the dataset."""
        kinds = {kind_of(user) for user in users}
        match self.kinds:
            case "integer":
                return kinds <= {int}
            case "string":
                return kinds <= {str}
            case "one-kind":
                return len(kinds | {kind_of(user) for user in self.accounts}) <= 1
        return True

    def account(self, user: User) -> Account:
        nothing = (0,) * (1 if self.binds else len(self.budget))
        return self.accounts.get(user) or Account(nothing, nothing)

    def largest_norm(self, scale: float, sampling_rate: float) -> Fraction:
        """The largest norm that counts as one step under the measure steps; 0 if none does."""
        if sampling_rate > self.policy["sampling_rate"]:
            return Fraction(0)
        noise = Fraction(float(self.policy["noise_multiplier"])) * (1 - Fraction(1, 2**20))
        rounded = float(noise)
        if Fraction(rounded) > noise:
            rounded = math.nextafter(rounded, 0.0)
        return Fraction(scale) / Fraction(rounded)

    def cost(self, charge: Mapping[str, Any], norm: float) -> tuple[int, ...]:
        if self.measure == "steps":
            if Fraction(float(norm)) > self.largest_norm(float(charge["scale"]), 1.0):
                return (LARGEST_COST,)
            return (UNIT if norm else 0,)
        return _cost(
            self.measure, self.orders, charge["mechanism"], float(charge["scale"]), float(norm)
        )

    def left(self, account: Account, reserve: float = 0.0) -> tuple[int, ...]:
        """Return what is left to spend if a share of the budget has to remain."""
        budget = self.at_orders(account, self.budget)
        usable = _usable(budget, reserve)
        return tuple(max(b - s, 0) for b, s in zip(usable, account.spent, strict=True))

    def bind(self, account: Account, cost: Cost) -> None:
        """Bind a user to an order, with the first charge that costs something at any."""
        if not self.binds or account.order is not None or not any(cost):
            return
        charges = [max(units, 1) for units in cost]
        steps = [
            (budget // units, float(budget) / float(units))
            for budget, units in zip(self.budget, charges, strict=True)
        ]
        account.order = steps.index(max(steps))

    def at_orders(self, account: Account, numbers: tuple[Any, ...]) -> tuple[Any, ...]:
        """Of a number for each order those that a user is charged at."""
        if not self.binds:
            return numbers
        return (numbers[account.order or 0],)  # who is not bound is charged nothing anywhere
