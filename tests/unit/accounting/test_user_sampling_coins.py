"""Levels from sampled gradients (docs/research/sampled-levels.md), by enumeration.

Its proof uses of the noise nothing but the likelihood ratios of a step, so it holds for noise on
finitely many outputs too, where both worlds can be computed for every policy there is, in exact
numbers. In place of divergences there are moments of the likelihood ratio: those of steps are
multiplied. Outputs add up modulo their number, as real numbers do without end.

A policy chooses one of a few options (a sampling rate and a shift, which is the level) for one
user, from the output and the user's coin of the step before; the filter leaves the user out where
the option does not fit. Variants that are known to be wrong go through the same enumeration.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Policy: TypeAlias = list[NDArray[np.int64]]
"""One array a step, (policies, cells of the outputs so far, coins so far): the option chosen."""
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


def divergence(law: Floats, ratio: Floats, order: float) -> Floats:
    """The larger direction between a law and the one with this likelihood ratio to it."""
    removed = np.log(ratio**order @ law)
    added = np.log(ratio ** (1.0 - order) @ law)
    return np.asarray(np.maximum(removed, added) / (order - 1.0))


def mixed(rate: float, ratio: Floats) -> Floats:
    return 1.0 - rate + rate * ratio


def two_worlds(
    noise: Floats,
    rates: tuple[float, float],
    mine: Policy,
    theirs: Policy,
    order: float,
    peeking: bool,
) -> tuple[Floats, Floats]:
    """What is lost of a user beside another whose level follows its own coins, and the largest sum
    of costs on any path; `peeking`: the other's level follows the coins of the first."""
    m, (rate, other_rate) = len(noise), rates
    shifted = np.array([np.roll(noise, shift) for shift in range(2 * m)])  # by shift, outputs
    cost = np.array([divergence(noise, mixed(rate, shifted[z] / noise), order) for z in range(m)])
    outputs = []
    for present in (1, 0):
        joint = np.ones((len(mine[0]), 1, 1, 1))  # by policy, outputs, my coins, their coins
        spent = np.zeros((len(mine[0]), 1, 1))
        for my_choice, their_choice in zip(mine, theirs, strict=True):
            my_level = my_choice[..., None] * present
            # In the world without the first user there are no coins of theirs: as if never drawn.
            coins = my_choice.shape[2]
            their_level = (
                (their_choice[..., None] if present else their_choice[:, :, :1, None])
                if peeking
                else their_choice[:, :, None, :]
            )
            branches = []
            for my_coin, their_coin in product((0, 1), repeat=2):
                likely = rate if my_coin else 1 - rate
                likely *= other_rate if their_coin else 1 - other_rate
                shift = my_coin * my_level + their_coin * their_level
                branches.append((joint * likely)[..., None] * shifted[shift])
            stacked = np.stack(np.broadcast_arrays(*branches), axis=-1)
            policies, before = stacked.shape[:2]
            split = stacked.reshape(policies, before, coins, coins, m, 2, 2)
            joint = split.transpose(0, 1, 4, 2, 5, 3, 6).reshape(
                policies, before * m, 2 * coins, 2 * coins
            )
            if present:
                step = (spent + cost[my_choice])[..., None, None]
                spread = np.broadcast_to(step, (*step.shape[:3], m, 2))
                spent = spread.transpose(0, 1, 3, 2, 4).reshape(policies, before * m, 2 * coins)
        outputs.append(joint.sum(axis=(2, 3)))
        if present:
            most = spent.max(axis=(1, 2))
    with_user, without = outputs
    ratio = with_user / without
    removed = np.log((ratio**order * without).sum(axis=1))
    added = np.log((ratio ** (1.0 - order) * without).sum(axis=1))
    return np.maximum(removed, added) / (order - 1.0), most


@pytest.mark.parametrize("order", [1.1, 2.0, 32.0])
@pytest.mark.parametrize("steps", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_others_may_follow_their_own_coins(order: float, steps: int) -> None:
    rng = np.random.default_rng(7)
    shapes = [(300, 3**step, 2**step) for step in range(steps)]
    mine, theirs = ([rng.integers(3, size=shape) for shape in shapes] for _ in range(2))
    noise = np.array([0.5, 0.3, 0.2])
    lost, most = two_worlds(noise, (0.3, 0.6), mine, theirs, order, peeking=False)
    assert (lost <= most + ROUNDING).all()


@pytest.mark.parametrize("order", [1.1, 2.0, 32.0])
def test_others_may_not_follow_the_coins_of_the_user(order: float) -> None:
    # The user may be drawn in the first step alone; whoever comes next comes if that was so.
    mine = [np.full((1, 3**step, 2**step), int(step == 0)) for step in range(3)]
    theirs = [np.zeros((1, 3**step, 2**step), dtype=np.int64) for step in range(3)]
    theirs[1][:, :, 1] = theirs[2][:, :, 2:] = 1
    noise = np.array([0.5, 0.3, 0.2])
    lost, most = two_worlds(noise, (0.3, 1.0), mine, theirs, order, peeking=True)
    assert lost > 1.5 * most
