"""Golden values are mpmath quadratures of w^a - 1 - a (w - 1) at 34 digits, w the density ratio."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest
from scipy.stats import norm as normal

from accounting import (
    MAX_COST_UNITS,
    MEASURES,
    Gaussian,
    NormGrid,
    PoissonGaussian,
    PoissonRecords,
    ReportAccountant,
    renyi_cost,
)
from accounting.costs.mechanisms import Direction
from accounting.costs.sampled_records import records_divergence
from tests.unit.accounting.refusals import refused

# noise / norm, sampling rate, records, order, D_a(M || P) "remove", D_a(P || M) "add"
GOLDEN = [
    (1.0, 0.01, 3, 1.5, "0.00115556140320846817", "0.00101777723522220068"),
    (1.0, 0.01, 3, 32.5, "131.995901805274955", "0.00981993755939483565"),
    (4.0, 0.1, 10, 2.5, "0.0879616836366978419", "0.0702230262279594334"),
    (4.0, 0.1, 10, 64.0, "176.608659372758902", "0.548120831022284706"),
    (2.0, 0.3, 2, 1.01, "0.0481342061454298973", "0.0433755626363108106"),
    (0.7, 0.9, 4, 3.5, "56.5528382560260162", "7.67441612018057621"),
    (10.0, 0.001, 50, 7.25, "0.0000913664944829718913", "0.0000907476012198760959"),
    (50.0, 1e-05, 7, 200.5, "1.96530400629151005e-10", "1.96528198789202241e-10"),
    (20.0, 0.02, 100, 5.5, "0.0281596854742416877", "0.0268150550590262093"),
    (3.0, 0.5, 20, 1.1, "6.53479494021215943", "3.86414325049954834"),
]
ORDERS = [1.01, 1.5, 2.0, 4.5, 16.0, 64.0, 512.0, 1e4]


def one(s: float, q: float, k: int, a: float, direction: Direction = "remove") -> float:
    divergence = records_divergence(PoissonRecords(s, q, k), np.ones(1), np.array([a]), direction)
    return float(divergence[0, 0])


def whole_order(s: float, q: float, k: int, order: int) -> mpmath.mpf:
    """The remove direction at a whole order: the mean over that many independent numbers drawn."""
    mu, rate = 1 / mpmath.mpf(s), mpmath.mpf(q)
    each = [
        mpmath.binomial(k, j) * rate**j * (1 - rate) ** (k - j) * mpmath.exp(-((j * mu) ** 2) / 2)
        for j in range(k + 1)
    ]
    sums = [mpmath.mpf(1)]
    for _ in range(order):
        longer = [mpmath.mpf(0)] * (len(sums) + k)
        for n, mass in enumerate(sums):
            for j, weight in enumerate(each):
                longer[n + j] += mass * weight
        sums = longer
    moment = mpmath.fsum(mass * mpmath.exp((n * mu) ** 2 / 2) for n, mass in enumerate(sums))
    return mpmath.log(moment) / (order - 1)


def is_just_above(result: float, exact: mpmath.mpf, slack: float = 1e-9) -> bool:
    return bool(exact <= result <= exact * (1 + slack))


@pytest.mark.parametrize(("s", "q", "k", "a", "removed", "added"), GOLDEN)
def test_both_directions_are_just_above_the_golden_values(
    s: float, q: float, k: int, a: float, removed: str, added: str
) -> None:
    assert is_just_above(one(s, q, k, a, "remove"), mpmath.mpf(removed))
    assert is_just_above(one(s, q, k, a, "add"), mpmath.mpf(added))


@pytest.mark.parametrize(
    ("s", "q", "k"),
    [(1.0, 0.01, 3), (8.0, 0.2, 12), (100.0, 1e-6, 40), (0.5, 0.999, 2), (2.0, 1e-30, 5)],
)
@pytest.mark.parametrize("order", [2, 3, 8])
def test_whole_orders_are_just_above_the_sum_over_numbers_drawn(
    s: float, q: float, k: int, order: int
) -> None:
    with mpmath.workdps(100):
        assert is_just_above(one(s, q, k, order), whole_order(s, q, k, order))


def test_one_record_costs_what_a_user_with_one_coin_costs() -> None:
    one_coin = PoissonGaussian(2.0, 0.1)
    assert renyi_cost(PoissonRecords(2.0, 0.1, 1), [0.3, 1.0], ORDERS).tolist() == (
        renyi_cost(one_coin, [0.3, 1.0], ORDERS).tolist()
    )
    for order in (1.5, 4.0, 40.0):
        assert one(2.0, 0.1, 1, order) == pytest.approx(
            renyi_cost(one_coin, [1.0], [order])[0, 0], rel=1e-9
        )


def test_all_records_in_every_sum_cost_what_their_sum_costs() -> None:
    found = renyi_cost(PoissonRecords(6.0, 1.0, 3), [1.0, 0.5], ORDERS)
    expected = renyi_cost(Gaussian(2.0), [1.0, 0.5], ORDERS)
    assert (found >= expected).all()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_norm_zero_and_rate_zero_cost_nothing() -> None:
    assert not renyi_cost(PoissonRecords(1.0, 0.5, 4), [0.0], ORDERS).any()
    assert not renyi_cost(PoissonRecords(1.0, 0.0, 4), [1.0], ORDERS).any()


@pytest.mark.slow
def test_charges_of_extreme_steps_saturate_and_are_never_nan() -> None:
    for mechanism in (
        PoissonRecords(1e-300, 0.5, 1000),
        PoissonRecords(1e300, 1e-290, 1000),
        PoissonRecords(1.0, 1.0 - 2.0**-53, 1000),
    ):
        costs = renyi_cost(mechanism, [5e-324, 1.0, 1.7e308], [1.0 + 2.0**-52, 2.0, 2.0**40])
        assert not np.isnan(costs).any()
        assert (costs > 0.0).all()
        units = MEASURES["renyi"].charge_units(mechanism, [1.0], [2.0])
        assert 0 < units[0, 0] <= MAX_COST_UNITS
    assert (
        MEASURES["renyi"].charge_units(PoissonRecords(1e-3, 0.5, 9), [1.0], [2.0]) == MAX_COST_UNITS
    )


def test_reports_of_records_are_by_renyi_divergences_alone() -> None:
    mechanisms = [PoissonRecords(4.0, 0.05, 6), PoissonGaussian(2.0, 0.1)]
    report = ReportAccountant(mechanisms, NormGrid(1.0, 1))
    both, first = report.epsilon([[100, 100], [100, 0]], 1e-6, "renyi")
    assert 0.0 < first < both
    for method in ("tightest", "pld", "saddlepoint"):
        with refused("mechanism"):
            report.epsilon([100, 100], 1e-6, method)


# A step with two outputs, so that everything can be enumerated in exact numbers: the probability of
# output 1 for each number of records drawn, and that of each number drawn for each number of
# records, which have coins of probability 1/3.
ONE = (Fraction(1, 4), Fraction(2, 5), Fraction(3, 4))
DRAWN = (
    (Fraction(1), Fraction(0), Fraction(0)),
    (Fraction(2, 3), Fraction(1, 3), Fraction(0)),
    (Fraction(4, 9), Fraction(4, 9), Fraction(1, 9)),
)
History = tuple[tuple[int, int], ...]  # of outputs and numbers drawn


def _chances(records: Callable[[History], int], steps: int) -> list[tuple[float, float]]:
    """The probabilities of every sequence of outputs, with and without the user.

    `records`: how many records the user has in a step.
    """
    found = []
    for outputs in product((0, 1), repeat=steps):
        given = [[one if output else 1 - one for one in ONE] for output in outputs]
        with_user = Fraction(0)
        for drawn in product((0, 1, 2), repeat=steps):
            chance = Fraction(1)
            for step, number in enumerate(drawn):
                history = tuple(zip(outputs[:step], drawn[:step], strict=True))
                chance *= DRAWN[records(history)][number] * given[step][number]
            with_user += chance
        found.append((float(with_user), float(math.prod(each[0] for each in given))))
    return found


def _divergence(chances: list[tuple[float, float]], order: float) -> float:
    """The larger Rényi divergence of both directions."""
    p, q = np.array(chances).T
    moments = [(p**order * q ** (1.0 - order)).sum(), (q**order * p ** (1.0 - order)).sum()]
    return math.log(max(moments)) / (order - 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("order", [1.5, 2.0, 12.0])
@pytest.mark.parametrize("budget", [1.0, 2.0, 2.6])
def test_no_policy_of_records_loses_more_than_its_renyi_budget(order: float, budget: float) -> None:
    """The filter charges a user by the number of records in a step, before they are drawn."""
    costs = [_divergence(_chances(lambda _, k=k: k, 1), order) for k in (0, 1, 2)]
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

    for _ in range(15):
        chosen = policy()
        found = _divergence(_chances(lambda h, chosen=chosen: chosen.get(h, 0), 3), order)
        assert found <= limit * (1.0 + 1e-12)
    # Without the filter they would exceed it.
    assert _divergence(_chances(lambda _: 2, 3), order) > limit


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
