"""Levels from sampled gradients (docs/research/filters.md), by enumeration.

Its proof uses of the noise nothing but the likelihood ratios of a step, so it holds for noise on
finitely many outputs too, where both worlds can be computed for every policy there is, in exact
numbers. In place of divergences there are moments of the likelihood ratio: those of steps are
multiplied. Outputs add up modulo their number, as real numbers do without end.

A policy chooses one of a few options (a sampling rate and a shift, which is the level) for one
user, from the output and the user's coin of the step before; the filter leaves the user out where
the option does not fit. Variants that are known to be wrong go through the same enumeration.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import product
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Charging: TypeAlias = Literal["every step", "full cost when sampled", "when sampled"]

ROUNDING = 1e-12


class Option(NamedTuple):
    """A way to take part in a step; the first one of a game is to be left out."""

    rate: Fraction
    shift: int


OUT = Option(Fraction(0), 0)
SMALL = ((6, 4), (OUT, Option(Fraction(1, 2), 1), Option(Fraction(1), 1)))
WIDE = ((5, 3, 2), (OUT, Option(Fraction(3, 10), 1), Option(Fraction(3, 10), -1)))
GAMES = pytest.mark.parametrize(
    "game", [SMALL, pytest.param(WIDE, marks=pytest.mark.slow)], ids=["small", "wide"]
)
ORDERS = pytest.mark.parametrize("order", [2, 3, 7])


class Game:
    """Two steps with noise on finitely many outputs, at one whole order."""

    def __init__(
        self, weights: tuple[int, ...], options: tuple[Option, ...], order: int, charging: Charging
    ) -> None:
        self.order, self.charging, self.options = order, charging, options
        self.noise = [Fraction(weight, sum(weights)) for weight in weights]
        self.costs = [self.cost(option.rate, option.shift) for option in options]
        if charging == "full cost when sampled":
            self.costs = [self.cost(Fraction(1), option.shift) for option in options]

    def ratio(self, shift: int, output: int) -> Fraction:
        """Return the likelihood ratio of an output if the user shifts it."""
        return self.noise[(output - shift) % len(self.noise)] / self.noise[output]

    def moments(self, law: list[Fraction], ratios: list[Fraction]) -> Fraction:
        """Return the larger direction."""
        pairs, a = list(zip(law, ratios, strict=True)), self.order
        return max(sum(p * x**a for p, x in pairs), sum(p / x ** (a - 1) for p, x in pairs))

    def cost(self, rate: Fraction, largest: int) -> Fraction:
        """Return the worst moment of any shift up to an option's own."""
        outputs = range(len(self.noise))
        return max(
            self.moments(self.noise, [1 - rate + rate * self.ratio(z, y) for y in outputs])
            for z in range(-abs(largest), abs(largest) + 1)
        )

    def policies(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield every policy: a first option, and one for each output and coin after it."""
        choices = range(len(self.options))
        yield from product(choices, product(choices, repeat=2 * len(self.noise)))

    def loss(self, first: int, later: tuple[int, ...], budget: Fraction) -> Fraction:
        """Return the moment of both outputs, behind a filter with this budget."""
        rate, shift = self.options[first]
        if self.costs[first] > budget:
            rate = Fraction(0)
        law, ratios, always = [], [], self.charging == "every step"
        for (y, p), (z, p2) in product(enumerate(self.noise), repeat=2):
            total = Fraction(0)
            for coin in (0, 1):
                spent = self.costs[first] if rate and (coin or always) else Fraction(1)
                then = later[2 * y + coin]
                rate2, shift2 = self.options[then if spent * self.costs[then] <= budget else 0]
                likely = rate * self.ratio(shift, y) if coin else 1 - rate
                total += likely * (1 - rate2 + rate2 * self.ratio(shift2, z))
            law.append(p * p2)
            ratios.append(total)
        return self.moments(law, ratios)


@GAMES
@ORDERS
@pytest.mark.parametrize("charging", ["every step", "full cost when sampled"])
def test_no_policy_at_all_loses_more_than_its_budget(
    game: tuple[tuple[int, ...], tuple[Option, ...]], order: int, charging: Charging
) -> None:
    """The bound is met by some, not only kept, if each step is charged."""
    world, met = Game(*game, order, charging), 0
    first, most = world.costs[1], max(world.costs)
    for budget in (first, first**2, first * most, most**2):
        losses = [world.loss(*policy, budget) for policy in world.policies()]
        assert max(losses) <= budget
        met += budget in losses
    assert met or charging != "every step"


@GAMES
@ORDERS
def test_sampled_cost_charged_only_when_sampled_is_exceeded(
    game: tuple[tuple[int, ...], tuple[Option, ...]], order: int
) -> None:
    """So the level may not follow the coin of its own step, which would be the same."""
    world = Game(*game, order, "when sampled")
    budget = world.costs[1]
    assert max(world.loss(*policy, budget) for policy in world.policies()) > budget


NOISE = np.array([0.5, 0.3, 0.2])
Levels: TypeAlias = Mapping[tuple[tuple[int, ...], tuple[int, ...]], int]
"""The level of a step, by the outputs and the coins of the steps before."""


def divergence(with_user: Floats, without: Floats, order: float) -> float:
    """Return the larger direction."""
    p, q = with_user, without
    moments = [(p**order * q ** (1 - order)).sum(), (q**order * p ** (1 - order)).sum()]
    return float(np.log(max(moments))) / (order - 1.0)


def two_worlds(
    rates: tuple[float, float],
    mine: Levels,
    theirs: Levels,
    steps: int,
    order: float,
    peeking: bool,
) -> tuple[float, float]:
    """Return what is lost of a user beside another, and the largest sum of costs on any path.

    The other's level follows the other's own coins, or those of the first user if `peeking`.
    """
    shifted = [np.roll(NOISE, shift) for shift in range(5)]
    mixed = [(1 - rates[0]) * NOISE + rates[0] * shifted[level] for level in range(3)]
    costs, most = [divergence(law, NOISE, order) for law in mixed], 0.0
    every_output = list(product(range(3), repeat=steps))
    laws = np.zeros((2, len(every_output)))
    coins = list(product((0, 1), repeat=steps))
    for present, (at, outputs), my, their in product((1, 0), enumerate(every_output), coins, coins):
        likely, spent = 1.0, 0.0
        for t, output in enumerate(outputs):
            # In the world without the first user there are no coins of theirs: as if never drawn.
            seen = tuple(coin * present for coin in my[:t]) if peeking else their[:t]
            levels = mine[outputs[:t], my[:t]] * present, theirs[outputs[:t], seen]
            spent += costs[levels[0]]
            for coin, rate in zip((my[t], their[t]), rates, strict=True):
                likely *= rate if coin else 1 - rate
            likely *= shifted[my[t] * levels[0] + their[t] * levels[1]][output]
        laws[present, at] += likely
        most = max(most, spent)
    return divergence(laws[1], laws[0], order), most


@pytest.mark.parametrize("order", [1.1, 2.0, 32.0])
@pytest.mark.parametrize(
    ("steps", "policies"), [(2, 60), pytest.param(3, 20, marks=pytest.mark.slow)]
)
def test_others_may_follow_their_own_coins(order: float, steps: int, policies: int) -> None:
    rng = random.Random(7)
    for _ in range(policies):
        mine, theirs = (defaultdict[Any, int](lambda: rng.randrange(3)) for _ in range(2))
        lost, most = two_worlds((0.3, 0.6), mine, theirs, steps, order, peeking=False)
        assert lost <= most + ROUNDING


@pytest.mark.parametrize("order", [1.1, 2.0, 32.0])
def test_others_may_not_follow_the_coins_of_the_user(order: float) -> None:
    # The user may be drawn in the first step alone; another user comes next if that was so.
    histories = [
        (outputs, coins)
        for t in range(3)
        for outputs, coins in product(product(range(3), repeat=t), product((0, 1), repeat=t))
    ]
    mine = {(outputs, coins): int(not coins) for outputs, coins in histories}
    theirs = {(outputs, coins): int(coins[:1] == (1,)) for outputs, coins in histories}
    lost, most = two_worlds((0.3, 1.0), mine, theirs, 3, order, peeking=True)
    assert lost > 1.5 * most
