"""Levels from sampled gradients (docs/research/sampled-levels.md), by enumeration.

Its proof uses of the noise nothing but the likelihood ratios of a step, so it holds for noise on
finitely many outputs too, where both worlds can be computed for every policy there is. Outputs add
up modulo their number, as real numbers do without end.

A policy chooses one of a few options (a sampling rate and a shift, which is the level) for one
user, from the outputs and the user's coins so far; the filter leaves the user out where the option
does not fit. Variants that are known to be wrong go through the same enumeration, and exceed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Literal, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from accounting import PoissonGaussian, renyi_cost

Floats: TypeAlias = NDArray[np.float64]
Policy: TypeAlias = list[NDArray[np.int64]]
"""One array a step, (policies, cells of the outputs so far, coins so far): the option chosen."""
Charging: TypeAlias = Literal["every step", "full cost when sampled", "when sampled", "late"]

ORDERS = (1.1, 1.5, 2.0, 4.0, 32.0)
ROUNDING = 1e-12


@dataclass(frozen=True)
class Game:
    """A mechanism on finitely many outputs, at one order.

    Attributes:
        noise: (m,), the law of the output without the user.
        ratios: (options, m), of the law with the user's contribution to the law without it.
        rates: (options,), with which the contribution is made; option 0 is to be left out.
        order: of the divergence.
        costs: (options,), what a step is charged.
        full_costs: (options,), the same without sampling.
        cells: (m,), all that a policy sees of an output.
    """

    noise: Floats
    ratios: Floats
    rates: Floats
    order: float
    costs: Floats
    full_costs: Floats
    cells: NDArray[np.int64]

    @classmethod
    def cyclic(
        cls, noise: Sequence[float], options: Sequence[tuple[float, int]], order: float
    ) -> Game:
        """Contributions shift the output; an option costs as much as any shift up to its own."""
        law = np.array(noise) / sum(noise)
        shifted = {shift: np.roll(law, shift) / law for shift in range(-len(law), len(law) + 1)}
        chosen = [(0.0, 0), *options]
        rates, shifts = np.array([q for q, _ in chosen]), [abs(shift) for _, shift in chosen]

        def cost(rate: float, largest: int) -> float:
            shifts_within = range(-largest, largest + 1)
            return max(divergence(law, mixed(rate, shifted[z]), order) for z in shifts_within)

        costs = np.array([cost(q, z) for q, z in zip(rates, shifts, strict=True)])
        full = np.array([cost(1.0, z) for z in shifts])
        ratios = np.array([shifted[shift] for _, shift in chosen])
        return cls(law, ratios, rates, order, costs, full, np.arange(len(law)))

    @classmethod
    def gaussian(cls, options: Sequence[tuple[float, float]], order: float) -> Game:
        """Gaussian noise of 1 on a lattice, where sums over analytic functions are their integrals,
        charged by the library. A policy sees the sign of an output."""
        lattice = np.arange(-12.0, 12.01, 0.5) + 0.25
        chosen = [(0.0, 0.0), *options]
        rates, norms = np.array([q for q, _ in chosen]), np.array([c for _, c in chosen])
        noise = np.exp(-(lattice**2) / 2.0)
        ratios = np.exp(np.outer(norms, lattice) - norms[:, None] ** 2 / 2.0)
        costs = np.array([library_cost(q, c, order) for q, c in zip(rates, norms, strict=True)])
        full = np.array([library_cost(1.0, c, order) for c in norms])
        cells = (lattice > 0).astype(np.int64)
        return cls(noise / noise.sum(), ratios, rates, order, costs, full, cells)

    def losses(self, policy: Policy, budget: float, charging: Charging) -> Floats:
        """The larger divergence between the worlds, of each policy, minus the budget."""
        weights = np.ones((len(policy[0]), 1, 1))  # by policy, outputs, coins
        spent = np.zeros_like(weights)
        law, seen = np.ones(1), np.zeros(1, dtype=np.int64)
        for choices in policy:
            # Late: the coin of the step is the last of those that the choice depends on.
            options = choices[:, seen, :]
            coins = weights.shape[2]
            by_coin = [options[..., b::2] if charging == "late" else options for b in (0, 1)]
            charges = self.full_costs if charging == "full cost when sampled" else self.costs
            fitting = [
                np.where(spent + charges[chosen] <= budget + ROUNDING, chosen, 0)
                for chosen in by_coin
            ]
            rates = np.full(1, self.rates.max()) if charging == "late" else self.rates[fitting[1]]
            shape = (*weights.shape, len(self.noise))
            absent = np.broadcast_to((weights * (1.0 - rates))[..., None], shape)
            present = (weights * rates)[..., None] * self.ratios[fitting[1]]
            free = charging in ("when sampled", "full cost when sampled")
            after = [
                np.broadcast_to(cost[..., None], shape)
                for cost in (
                    spent + (0.0 if free else charges[fitting[0]]),
                    spent + charges[fitting[1]],
                )
            ]
            size = (len(weights), -1, 2 * coins)
            weights = np.stack([absent, present], axis=3).transpose(0, 1, 4, 2, 3).reshape(size)
            spent = np.stack(after, axis=3).transpose(0, 1, 4, 2, 3).reshape(size)
            law = np.outer(law, self.noise).ravel()
            cells = int(self.cells.max()) + 1
            seen = np.add.outer(seen * cells, self.cells).ravel()
        return divergence(law, weights.sum(axis=2), self.order) - budget


def divergence(law: Floats, ratio: Floats, order: float) -> Floats:
    """The larger direction between a law and the one with this likelihood ratio to it."""
    removed = np.log(ratio**order @ law)
    added = np.log(ratio ** (1.0 - order) @ law)
    return np.asarray(np.maximum(removed, added) / (order - 1.0))


def mixed(rate: float, ratio: Floats) -> Floats:
    return 1.0 - rate + rate * ratio


def library_cost(rate: float, norm: float, order: float) -> float:
    return float(renyi_cost(PoissonGaussian(1.0, float(rate)), [norm], [order])[0, 0])


def shapes(steps: int, cells: int, late: bool = False) -> list[tuple[int, int]]:
    return [(cells**step, 2 ** (step + late)) for step in range(steps)]


def every_policy(options: int, steps: int, cells: int, late: bool = False) -> Iterator[Policy]:
    """All of them, in batches."""
    tables = shapes(steps, cells, late)
    sizes = [rows * columns for rows, columns in tables]
    batch = 2**15
    for start in range(0, options ** sum(sizes), batch):
        numbers = np.arange(start, min(start + batch, options ** sum(sizes)))
        digits = numbers[:, None] // options ** np.arange(sum(sizes)) % options
        parts = np.split(digits, np.cumsum(sizes)[:-1], axis=1)
        yield [part.reshape(-1, *table) for part, table in zip(parts, tables, strict=True)]


def random_policies(
    rng: np.random.Generator, count: int, options: int, steps: int, cells: int, late: bool = False
) -> Policy:
    return [rng.integers(options, size=(count, *table)) for table in shapes(steps, cells, late)]


def budgets_of(game: Game, steps: int) -> list[float]:
    """Sums that policies can spend to the last unit, and one that leaves a rest."""
    costs = game.costs[1:]
    most = float(costs.max())
    return sorted({float(costs.min()), most, float(costs.sum()), 0.8 * steps * most})


SMALL = ([0.6, 0.4], [(0.5, 1), (1.0, 1)], 2)
WIDE = ([0.5, 0.3, 0.2], [(0.3, 1), (0.3, -1), (1.0, 1)], 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "options", "steps", "order"),
    [(*game, order) for game in (SMALL, WIDE) for order in ORDERS],
)
def test_no_policy_at_all_loses_more_than_its_budget(
    noise: list[float], options: list[tuple[float, int]], steps: int, order: float
) -> None:
    game = Game.cyclic(noise, options, order)
    for budget in budgets_of(game, steps):
        worst = max(
            float(game.losses(policy, budget, "every step").max())
            for policy in every_policy(len(game.rates), steps, len(noise))
        )
        assert worst <= ROUNDING
    # What policies can spend, some lose: the bound is met, not only kept.
    assert max(
        float(game.losses(policy, float(game.costs.max()), "every step").max())
        for policy in every_policy(len(game.rates), 1, len(noise))
    ) == pytest.approx(0.0, abs=ROUNDING)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_no_policy_at_all_loses_more_than_its_budget_in_exact_numbers(order: int) -> None:
    # Moments in place of divergences: those of steps are multiplied. No rounding, no tolerance.
    noise = [Fraction(2, 3), Fraction(1, 3)]
    ratio = [noise[1 - y] / noise[y] for y in (0, 1)]
    rates = [Fraction(0), Fraction(1, 3), Fraction(1)]

    def moments(law: list[Fraction], ratios: list[Fraction]) -> Fraction:
        pairs = list(zip(law, ratios, strict=True))
        return max(sum(p * x**order for p, x in pairs), sum(p / x ** (order - 1) for p, x in pairs))

    costs = [moments(noise, [1 - q + q * x for x in ratio]) for q in rates]
    met = 0
    for budget, first in product([costs[1], costs[1] ** 2, costs[1] * costs[2]], (0, 1, 2)):
        if costs[first] > budget:
            continue
        for later in product((0, 1, 2), repeat=4):
            fitting = [o if costs[first] * costs[o] <= budget else 0 for o in later]
            law, losses = [], []
            for (y, p), (z, p2) in product(enumerate(noise), enumerate(noise)):
                loss = Fraction(0)
                for coin in (0, 1):
                    q, then = rates[first], rates[fitting[2 * y + coin]]
                    likely = q * ratio[y] if coin else 1 - q
                    loss += likely * (1 - then + then * ratio[z])
                law.append(p * p2)
                losses.append(loss)
            assert moments(law, losses) <= budget
            met += moments(law, losses) == budget
    assert met


@pytest.mark.parametrize("order", [1.5, 2.0, 4.0])
@pytest.mark.parametrize("steps", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_no_policy_of_gaussian_steps_loses_more_than_the_library_charged(
    order: float, steps: int
) -> None:
    rng = np.random.default_rng(6)
    game = Game.gaussian([(0.1, 1.0), (0.3, 0.5), (0.3, 1.0), (1.0, 0.3)], order)
    for budget in budgets_of(game, steps):
        policies = random_policies(rng, 40 if steps == 2 else 6, len(game.rates), steps, 2)
        assert game.losses(policies, budget, "every step").max() <= ROUNDING


@pytest.mark.parametrize("order", ORDERS)
def test_full_cost_may_be_charged_only_when_sampled(order: float) -> None:
    game = Game.cyclic(WIDE[0], WIDE[1], order)
    full = float(game.full_costs.max())
    for budget in (full, 1.5 * full, 2.0 * full):
        for policy in every_policy(len(game.rates), 2, 3):
            assert game.losses(policy, budget, "full cost when sampled").max() <= ROUNDING


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("charging", ["when sampled", "late"])
def test_the_sampled_cost_may_not_be_charged_only_when_sampled_nor_the_level_follow_the_coin(
    charging: Charging, order: float
) -> None:
    game = Game.cyclic([0.6, 0.4], [(0.3, 1)], order)
    budget = float(game.costs.max())
    losses = [
        game.losses(policy, budget, charging).max()
        for policy in every_policy(2, 2, 2, charging == "late")
    ]
    assert max(losses) > 0.2 * budget


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


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("steps", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_others_may_follow_their_own_coins(order: float, steps: int) -> None:
    rng = np.random.default_rng(7)
    mine = random_policies(rng, 300, 3, steps, 3)
    theirs = random_policies(rng, 300, 3, steps, 3)
    noise = np.array([0.5, 0.3, 0.2])
    lost, most = two_worlds(noise, (0.3, 0.6), mine, theirs, order, peeking=False)
    assert (lost <= most + ROUNDING).all()


@pytest.mark.parametrize("order", ORDERS)
def test_others_may_not_follow_the_coins_of_the_user(order: float) -> None:
    # The user may be drawn in the first step alone; whoever comes next comes if that was so.
    mine = [np.full((1, 3**step, 2**step), int(step == 0)) for step in range(3)]
    theirs = [np.zeros((1, 3**step, 2**step), dtype=np.int64) for step in range(3)]
    theirs[1][:, :, 1] = theirs[2][:, :, 2:] = 1
    noise = np.array([0.5, 0.3, 0.2])
    lost, most = two_worlds(noise, (0.3, 1.0), mine, theirs, order, peeking=True)
    assert lost > 1.5 * most
