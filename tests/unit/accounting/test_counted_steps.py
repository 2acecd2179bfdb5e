"""The measure `steps`: its theorem by enumeration, its numbers of steps, its decisions."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import product
from math import prod

import mpmath
import numpy as np
import pytest

from accounting import (
    MEASURES,
    PoissonGaussian,
    RenyiFilter,
    StepsFilter,
    StepShape,
    candidate_orders,
    steps_measure,
    steps_noise_multiplier,
)
from accounting.costs.step_shape import ONE_STEP
from accounting.exact.units import MAX_COST_UNITS
from tests.unit.accounting.exact_deltas import Laws, hockey_stick_excess, sampled_delta

# A mechanism with two outputs, so that everything can be enumerated in exact numbers: the
# probability of output 1 at each norm level. Level 1 is level 2 with noise added.
ONE = {0: Fraction(1, 4), 1: Fraction(2, 5), 2: Fraction(3, 4)}
RATE, ROUNDING = Fraction(1, 3), 1e-12

History = tuple[tuple[int, int], ...]
Policy = Mapping[History, int]


def _chance(level: int, output: int) -> Fraction:
    return ONE[level] if output else 1 - ONE[level]


def _laws(policy: Policy, steps: int) -> Laws:
    found = []
    for outputs in product((0, 1), repeat=steps):
        without, with_user = prod(_chance(0, output) for output in outputs), Fraction(0)
        for coins in product((0, 1), repeat=steps):
            chance = Fraction(1)
            for step in range(steps):
                history = tuple(zip(outputs[:step], coins[:step], strict=True))
                chance *= RATE if coins[step] else 1 - RATE
                chance *= _chance(policy[history] if coins[step] else 0, outputs[step])
            with_user += chance
        found.append((float(with_user), float(without)))
    with_users, withouts = np.array(found).T
    return with_users, withouts


def _copies(steps: int) -> Laws:
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
    assert max(hockey_stick_excess(_laws(each, steps), bound) for each in policies) <= ROUNDING


def test_one_step_more_than_allowed_exceeds_the_copies() -> None:
    everywhere = _policies(3, 3, lambda history, left: 2)
    assert abs(hockey_stick_excess(_laws(everywhere, 3), _copies(3))) <= ROUNDING
    assert hockey_stick_excess(_laws(everywhere, 3), _copies(2)) > 0.01


@pytest.mark.parametrize("rate", [0.004, 0.01, 1.0])
@pytest.mark.parametrize("norm", [0.2, 0.9, 1.0])
def test_a_lower_rate_and_more_noise_are_dominated_by_the_shape(rate: float, norm: float) -> None:
    shape = StepShape(1.0 if rate == 1.0 else 0.01, 0.8)
    assert shape.units(PoissonGaussian(0.8, rate), [norm]).tolist() == [ONE_STEP]
    for epsilon in np.linspace(-4.0, 4.0, 41).tolist():
        for added in (False, True):
            with mpmath.workdps(60):
                step = sampled_delta(norm / 0.8, rate, epsilon, added=added)
                whole = sampled_delta(1.0 / 0.8, shape.sampling_rate, epsilon, added=added)
                assert step <= whole + 1e-40


@pytest.mark.parametrize(
    ("rate", "noise", "epsilon", "published"),
    [(0.01, 1.0, 1.828, 1000), (0.01, 0.65, 7.751, 2000), (1.0, 100.0, 0.8, 478)],
)
def test_number_of_steps_is_that_of_the_loss_distribution(
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
    units = MEASURES["renyi"].charge_units(step, [1.0], orders)[0]
    rule = RenyiFilter(orders, budgets)
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
def test_noise_for_a_number_of_steps_allows_hardly_more(
    epsilon: float, delta: float, rate: float, steps: int
) -> None:
    noise = steps_noise_multiplier(epsilon, delta, rate, steps)
    assert steps_measure(StepShape(rate, noise)).budgets_for(epsilon, delta)[0] >= steps
    less = steps_measure(StepShape(rate, noise * 0.998))
    assert less.epsilon([steps], delta) > epsilon


def test_a_norm_costs_one_step_and_norm_zero_nothing() -> None:
    norms = [0.0, 5e-324, 0.3, 0.5, 0.5000001, 0.51]
    charge = StepShape(0.1, 2.0).units(PoissonGaussian(1.0, 0.05), norms)
    assert charge.tolist() == [0, *[ONE_STEP] * 4, MAX_COST_UNITS]


def test_noise_computed_in_float32_counts() -> None:
    clip_norms = np.random.default_rng(1).uniform(0.01, 100.0, 200).astype(np.float32)
    for clip_norm in clip_norms:
        step = PoissonGaussian(float(np.float32(1.1) * clip_norm), 0.1)
        assert StepShape(0.1, 1.1).units(step, [float(clip_norm)])[0] == ONE_STEP


def test_filter_admits_exactly_the_number_of_steps() -> None:
    rule, step = StepsFilter(StepShape(0.1, 2.0), 3), PoissonGaussian(2.0, 0.1)
    state = rule.initial_state(3)
    for number in range(4):
        state, admitted = rule.admit_norms(state, step, [0.3, 0.0, 2.0])
        assert admitted.tolist() == [number < 3, True, False]
    assert rule.remaining(state).tolist() == [0.0, 3.0, 3.0]
    state, granted = rule.grant(state, step, [0.5, 2.0, 0.5])
    assert granted.tolist() == pytest.approx([0.0, 1.0, 0.5], rel=2e-6)
    assert rule.remaining(state).tolist() == [0.0, 2.0, 2.0]
