"""The measure `steps`: its theorem by enumeration, its numbers of steps, its decisions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.stats import norm as normal

from accounting import (
    Gaussian,
    InvalidInput,
    Laplace,
    PerUserOrderFilter,
    PoissonGaussian,
    PoissonRecords,
    StepsFilter,
    StepShape,
    candidate_orders,
    charge_units,
    steps_measure,
    steps_noise_multiplier,
)
from accounting.costs.step_shape import ONE_STEP
from accounting.exact.units import MAX_COST_UNITS

# A mechanism with two outputs, so that everything can be enumerated in exact numbers: the
# probability of output 1 at each norm level. Level 1 is level 2 with noise added.
ONE = {0: Fraction(1, 4), 1: Fraction(2, 5), 2: Fraction(3, 4)}
RATE = Fraction(1, 3)

History = tuple[tuple[int, int], ...]
Policy = Mapping[History, int]


def _chance(level: int, output: int) -> Fraction:
    return ONE[level] if output else 1 - ONE[level]


def _laws(policy: Policy, steps: int) -> list[tuple[Fraction, Fraction]]:
    """The probabilities of every sequence of outputs, with and without the user."""
    found = []
    for outputs in product((0, 1), repeat=steps):
        without = Fraction(1)
        for output in outputs:
            without *= _chance(0, output)
        with_user = Fraction(0)
        for coins in product((0, 1), repeat=steps):
            chance = Fraction(1)
            for step in range(steps):
                history = tuple(zip(outputs[:step], coins[:step], strict=True))
                chance *= RATE if coins[step] else 1 - RATE
                chance *= _chance(policy[history] if coins[step] else 0, outputs[step])
            with_user += chance
        found.append((with_user, without))
    return found


def _excess(laws: list[tuple[Fraction, Fraction]], bound: list[tuple[Fraction, Fraction]]) -> float:
    """By how much a hockey-stick divergence exceeds the bound's, at any gamma, in a direction.

    Both are convex and piecewise linear in gamma, so the ends of the bound's pieces decide.
    """

    def divergence(pairs: list[tuple[Fraction, Fraction]], gamma: Fraction) -> Fraction:
        return sum((max(p - gamma * q, Fraction(0)) for p, q in pairs), Fraction(0))

    worst = Fraction(-1)
    for pairs, limit in ((laws, bound), ([x[::-1] for x in laws], [x[::-1] for x in bound])):
        for gamma in {p / q for p, q in [*pairs, *limit]}:
            worst = max(worst, divergence(pairs, gamma) - divergence(limit, gamma))
    return float(worst)


def _copies(steps: int) -> list[tuple[Fraction, Fraction]]:
    """The laws of a user who takes part in all of these steps, at the highest level."""
    histories = [h for n in range(steps) for h in product(product((0, 1), repeat=2), repeat=n)]
    return _laws(dict.fromkeys(histories, 2), steps)


def _policies(
    steps: int, allowed: int, choose: Callable[[History, int], int]
) -> dict[History, int]:
    """A policy whose steps with a level above 0 are at most `allowed` on every path."""
    policy: dict[History, int] = {}

    def fill(history: History, left: int) -> None:
        if len(history) == steps:
            return
        level = choose(history, left) if left else 0
        policy[history] = level
        for output, coin in product((0, 1), repeat=2):
            fill((*history, (output, coin)), left - (level > 0))

    fill((), allowed)
    return policy


@pytest.mark.parametrize(("steps", "allowed"), [(2, 2), (2, 1), (3, 2), (3, 1)])
def test_no_policy_of_levels_and_participation_exceeds_the_copies(steps: int, allowed: int) -> None:
    bound, rng = _copies(allowed), random.Random(7 * steps + allowed)
    policies = []
    if steps == 2:  # all of them
        histories = [(), *((step,) for step in product((0, 1), repeat=2))]
        for levels in product((0, 1, 2), repeat=len(histories)):
            table = dict(zip(histories, levels, strict=True))
            policies.append(_policies(steps, allowed, lambda h, _, table=table: table[h]))
    else:
        policies = [
            _policies(steps, allowed, lambda h, left: rng.choice((0, 1, 2, 2))) for _ in range(60)
        ]
    assert max(_excess(_laws(policy, steps), bound) for policy in policies) <= 0


def test_one_step_more_than_allowed_exceeds_the_copies() -> None:
    everywhere = _policies(3, 3, lambda history, left: 2)
    assert _excess(_laws(everywhere, 3), _copies(3)) == 0
    assert _excess(_laws(everywhere, 3), _copies(2)) > 0.01


def test_a_level_that_follows_the_coin_of_its_own_step_exceeds_the_copies() -> None:
    """The coin of a step is drawn after its charge; charging sampled steps alone is not enough."""

    def if_sampled(history: History, left: int) -> int:
        return 2

    policy = _policies(3, 3, if_sampled)
    # Three draws, of which at most one is counted: a draw without the user is free.
    drawn_once = {h: 0 if any(coin for _, coin in h) else level for h, level in policy.items()}
    assert _excess(_laws(drawn_once, 3), _copies(1)) > 0.01


@pytest.mark.parametrize("rate", [0.004, 0.01, 1.0])
@pytest.mark.parametrize("norm", [0.2, 0.9, 1.0])
def test_a_lower_rate_and_more_noise_are_dominated_by_the_shape(rate: float, norm: float) -> None:
    shape = StepShape(1.0 if rate == 1.0 else 0.01, 0.8)
    gammas = np.geomspace(0.01, 100.0, 400)

    def curves(q: float, ratio: float) -> tuple[np.ndarray, np.ndarray]:
        x = np.linspace(-12.0, 12.0 + ratio, 40_001)
        base, moved = normal.pdf(x), normal.pdf(x - ratio)
        mixed, width = (1 - q) * base + q * moved, x[1] - x[0]
        remove = [np.maximum(mixed - g * base, 0).sum() * width for g in gammas]
        add = [np.maximum(base - g * mixed, 0).sum() * width for g in gammas]
        return np.array(remove), np.array(add)

    mechanism = PoissonGaussian(0.8, rate)
    assert shape.units(mechanism, [norm]).tolist() == [ONE_STEP]
    for step, whole in zip(
        curves(rate, norm / 0.8), curves(shape.sampling_rate, 1.0 / 0.8), strict=True
    ):
        assert (step <= whole + 1e-9).all()


@pytest.mark.parametrize(
    ("rate", "noise", "epsilon", "published"),
    [(0.01, 1.0, 1.828, 1000), (0.01, 0.65, 7.751, 2000), (1.0, 100.0, 0.8, 478)],
)
def test_the_number_of_steps_is_that_of_the_certified_loss_distribution(
    rate: float, noise: float, epsilon: float, published: int
) -> None:
    """1.828 and 7.751 are rounded, so the certified interval allows a step less."""
    measure = steps_measure(StepShape(rate, noise))
    steps = int(measure.budgets_for(epsilon, 1e-5)[0])
    assert published - 1 <= steps <= published
    assert measure.epsilon([steps], 1e-5) <= epsilon < measure.epsilon([steps + 1], 1e-5)


def test_the_renyi_filter_admits_fewer_steps() -> None:
    epsilon, delta, step = 1.828, 1e-5, PoissonGaussian(1.0, 0.01)
    orders, budgets = candidate_orders(epsilon, delta)
    units = charge_units("renyi", step, [1.0], orders)[0]
    rule = PerUserOrderFilter(orders, budgets)
    renyi = max(b // u for b, u in zip(rule.budget_units, units.tolist(), strict=True))
    counted = int(steps_measure(StepShape(0.01, 1.0)).budgets_for(epsilon, delta)[0])
    assert 650 < renyi < 700 < 990 < counted


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps"),
    [
        (1.0, 1e-6, 1.0, 50),
        pytest.param(3.0, 1e-5, 0.01, 3712, marks=pytest.mark.slow),
        pytest.param(8.0, 1e-5, 0.1, 180, marks=pytest.mark.slow),
        pytest.param(0.5, 1e-6, 1e-3, 9, marks=pytest.mark.slow),
    ],
)
def test_the_noise_for_a_number_of_steps_allows_them_and_hardly_more(
    epsilon: float, delta: float, rate: float, steps: int
) -> None:
    noise = steps_noise_multiplier(epsilon, delta, rate, steps)
    assert steps_measure(StepShape(rate, noise)).budgets_for(epsilon, delta)[0] >= steps
    less = steps_measure(StepShape(rate, noise * 0.998))
    assert less.epsilon([steps], delta) > epsilon


def test_a_norm_costs_one_step_and_norm_zero_nothing() -> None:
    shape = StepShape(0.1, 2.0)
    norms = [0.0, 5e-324, 0.3, 0.5, 0.5000001, 0.51]
    charge = shape.units(PoissonGaussian(1.0, 0.05), norms)
    assert charge.tolist() == [0, ONE_STEP, ONE_STEP, ONE_STEP, ONE_STEP, MAX_COST_UNITS]


def test_noise_computed_in_float32_counts() -> None:
    shape = StepShape(0.1, 1.1)
    for clip_norm in np.random.default_rng(1).uniform(0.01, 100.0, 200):
        noise = float(np.float32(1.1) * np.float32(clip_norm))
        assert (
            shape.units(PoissonGaussian(noise, 0.1), [float(np.float32(clip_norm))])[0] == ONE_STEP
        )


@pytest.mark.parametrize("step", [PoissonGaussian(9.0, 0.11), Gaussian(9.0), Laplace(9.0)])
def test_steps_of_another_kind_or_a_higher_rate_are_refused(step: PoissonGaussian) -> None:
    with pytest.raises(InvalidInput):
        StepShape(0.1, 2.0).units(step, [1.0])


@pytest.mark.parametrize(("rate", "noise"), [(0.0, 1.0), (1.1, 1.0), (0.1, 0.0), (0.1, math.inf)])
def test_a_shape_needs_a_rate_and_a_noise(rate: float, noise: float) -> None:
    with pytest.raises(InvalidInput):
        StepShape(rate, noise)


def test_an_epsilon_below_that_of_one_step_is_refused() -> None:
    with pytest.raises(InvalidInput):
        steps_measure(StepShape(0.01, 0.3)).budgets_for(1.0, 1e-5)


def test_the_filter_admits_exactly_the_number_of_steps() -> None:
    rule, step = StepsFilter(StepShape(0.1, 2.0), 3), PoissonGaussian(2.0, 0.1)
    state, admitted = rule.initial_state(3), []
    for norms in ([1.0, 0.0, 2.0], [0.1, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0], [0, 1, 1]):
        state, allowed = rule.admit_norms(state, step, norms)
        admitted.append(allowed.tolist())
    assert admitted == [
        [True, True, False],
        [True, True, True],
        [True, True, True],
        [False, True, True],
        [True, True, False],
    ]
    assert rule.remaining(state).tolist() == [0.0, 0.0, 0.0]


# Users with up to two records: the history has the number drawn in place of the coin. The policy is
# how many records a user has in a step, as a function of the outputs and of the numbers drawn.
WEIGHTS = {
    0: (Fraction(1),),
    1: (1 - RATE, RATE),
    2: ((1 - RATE) ** 2, 2 * RATE * (1 - RATE), RATE**2),
}


def _laws_of_records(policy: Policy, steps: int) -> list[tuple[Fraction, Fraction]]:
    """The probabilities of every sequence of outputs; level j is j records drawn."""
    found = []
    for outputs in product((0, 1), repeat=steps):
        without, with_user = Fraction(1), Fraction(0)
        for output in outputs:
            without *= _chance(0, output)
        for drawn in product((0, 1, 2), repeat=steps):
            chance = Fraction(1)
            for step in range(steps):
                history = tuple(zip(outputs[:step], drawn[:step], strict=True))
                weights = WEIGHTS[policy.get(history, 0)]
                chance *= weights[drawn[step]] if drawn[step] < len(weights) else 0
                chance *= _chance(drawn[step], outputs[step])
            with_user += chance
        found.append((with_user, without))
    return found


def _policies_of_records(
    steps: int, allowed: int, choose: Callable[[History], int]
) -> dict[History, int]:
    policy: dict[History, int] = {}

    def fill(history: History, left: int) -> None:
        if len(history) == steps:
            return
        records = policy[history] = choose(history) if left else 0
        for output, drawn in product((0, 1), range(records + 1)):
            fill((*history, (output, drawn)), left - (records > 0))

    fill((), allowed)
    return policy


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "allowed"), [(1, 1), (2, 2), (2, 1), (3, 2)])
def test_no_policy_of_records_exceeds_the_copies_of_most_records(steps: int, allowed: int) -> None:
    copies = _laws_of_records(_policies_of_records(allowed, allowed, lambda history: 2), allowed)
    rng = random.Random(steps + 10 * allowed)
    policies = [
        _policies_of_records(steps, allowed, lambda _: rng.choice((0, 1, 2, 2)))
        for _ in range(4 if steps == 1 else 60 // steps)
    ]
    assert max(_excess(_laws_of_records(policy, steps), copies) for policy in policies) <= 0


def _divergences(laws: list[tuple[Fraction, Fraction]], order: float) -> tuple[float, float]:
    """The Rényi divergences of both directions."""
    p, q = (np.array([float(pair[side]) for pair in laws]) for side in (0, 1))

    def one(of: np.ndarray, against: np.ndarray) -> float:
        return math.log(float((of**order * against ** (1.0 - order)).sum())) / (order - 1.0)

    return one(p, q), one(q, p)


@pytest.mark.slow
@pytest.mark.parametrize("order", [1.5, 2.0, 12.0])
@pytest.mark.parametrize("budget", [1.0, 2.0, 2.6])
def test_no_policy_of_records_loses_more_than_its_renyi_budget(order: float, budget: float) -> None:
    """The filter charges a user by the number of records in a step, before they are drawn."""
    costs = [0.0] + [max(_divergences(_laws_of_records({(): k}, 1), order)) for k in (1, 2)]
    limit, rng = budget * costs[2], random.Random(4)

    def policy() -> dict[History, int]:
        chosen: dict[History, int] = {}

        def fill(history: History, spent: float) -> None:
            if len(history) == 3:
                return
            asked = rng.choice((0, 1, 2, 2))
            records = chosen[history] = asked if spent + costs[asked] <= limit else 0
            for output, drawn in product((0, 1), range(records + 1)):
                fill((*history, (output, drawn)), spent + costs[records])

        fill((), 0.0)
        return chosen

    found = [max(_divergences(_laws_of_records(policy(), 3), order)) for _ in range(15)]
    assert max(found) <= limit * (1.0 + 1e-12)
    # Without the filter they would exceed it.
    always = _laws_of_records(_policies_of_records(3, 3, lambda _: 2), 3)
    assert max(_divergences(always, order)) > limit


def test_a_user_with_more_records_than_the_shape_exceeds_the_copies() -> None:
    two, one = (_laws_of_records(_policies_of_records(2, 2, lambda _, k=k: k), 2) for k in (2, 1))
    assert _excess(two, one) > 0.01


@pytest.mark.parametrize(
    "vectors",
    [
        [(1.0, 0.0), (0.0, 1.0), (0.0, -1.0)],
        [(1.0, 0.0), (-1.0, 0.0), (0.6, 0.8)],
        [(1.0, 0.0), (0.8, 0.6), (0.0, 0.5)],
        [(1.0, 0.0), (0.0, 1.0)],
        [(0.3, 0.1), (1.0, 0.0), (1.0, 0.0)],
    ],
)
def test_records_that_are_not_aligned_or_fewer_are_dominated(
    vectors: list[tuple[float, float]],
) -> None:
    """Three aligned records of norm 1 against fewer, shorter or differently directed ones."""
    rate, noise, grid = 0.3, 1.2, np.linspace(-8.0, 10.0, 361)
    x, y = np.meshgrid(grid, grid, indexing="ij")

    def curves(moves: list[tuple[float, float]], rates: list[float]) -> list[list[float]]:
        with_user = np.zeros_like(x)
        for coins in product((0, 1), repeat=len(moves)):
            chance = math.prod(q if c else 1 - q for c, q in zip(coins, rates, strict=True))
            place = np.array([np.multiply(c, v) for c, v in zip(coins, moves, strict=True)]).sum(0)
            density = normal.pdf(x, place[0], noise) * normal.pdf(y, place[1], noise)
            with_user += chance * density
        without, area = normal.pdf(x, 0, noise) * normal.pdf(y, 0, noise), (grid[1] - grid[0]) ** 2
        gammas = np.geomspace(0.2, 8.0, 25)
        return [
            [np.maximum(with_user - g * without, 0).sum() * area for g in gammas],
            [np.maximum(without - g * with_user, 0).sum() * area for g in gammas],
        ]

    aligned = np.array(curves([(1.0, 0.0)] * 3, [rate] * 3))
    assert (np.array(curves(vectors, [rate] * len(vectors))) <= aligned + 1e-6).all()
    lower = [rate, rate / 2, 0.9 * rate][: len(vectors)]
    assert (np.array(curves(vectors, lower)) <= aligned + 1e-6).all()


def test_users_with_at_most_the_records_of_the_shape_count_one_step() -> None:
    shape = StepShape(0.1, 2.0, records=5)
    for step in (
        PoissonRecords(2.0, 0.1, 5),
        PoissonRecords(2.0, 0.05, 1),
        PoissonGaussian(2.0, 0.1),
    ):
        assert shape.units(step, [0.0, 0.5, 1.0, 1.01]).tolist() == [
            0,
            ONE_STEP,
            ONE_STEP,
            MAX_COST_UNITS,
        ]
    for step in (PoissonRecords(9.0, 0.1, 6), PoissonRecords(9.0, 0.11, 2)):
        assert not shape.covers(step)
        with pytest.raises(InvalidInput):
            shape.units(step, [1.0])
    assert not StepShape(0.1, 2.0).covers(PoissonRecords(9.0, 0.1, 2))


@pytest.mark.parametrize("records", [0, 1001, 1.5])
def test_a_shape_needs_a_number_of_records(records: int) -> None:
    with pytest.raises(InvalidInput):
        StepShape(0.1, 2.0, records)


def test_a_shape_with_one_record_is_the_shape_without_the_number() -> None:
    assert StepShape(0.1, 2.0, 1) == StepShape(0.1, 2.0)
    assert steps_measure(StepShape(0.1, 2.0, 1)) is steps_measure(StepShape(0.1, 2.0))


@pytest.mark.slow
def test_more_records_allow_fewer_steps() -> None:
    allowed = [
        int(steps_measure(StepShape(0.01, 4.0, k)).budgets_for(2.0, 1e-6)[0]) for k in (1, 2, 4, 8)
    ]
    assert allowed[0] > 3 * allowed[1] > 9 * allowed[2] > 27 * allowed[3] > 0


def test_a_full_sum_of_k_records_is_one_record_with_less_noise() -> None:
    several = steps_measure(StepShape(1.0, 40.0, 4)).epsilon([20], 1e-6)
    assert several == pytest.approx(steps_measure(StepShape(1.0, 10.0)).epsilon([20], 1e-6))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "rate", "steps", "records"), [(3.0, 0.01, 500, 4), (1.0, 1e-4, 50, 60)]
)
def test_the_noise_for_users_with_several_records_is_enough_and_hardly_more(
    epsilon: float, rate: float, steps: int, records: int
) -> None:
    noise = steps_noise_multiplier(epsilon, 1e-6, rate, steps, records=records)
    measure = steps_measure(StepShape(rate, noise, records))
    assert measure.budgets_for(epsilon, 1e-6)[0] >= steps
    assert steps_measure(StepShape(rate, noise * 0.998, records)).epsilon([steps], 1e-6) > epsilon
