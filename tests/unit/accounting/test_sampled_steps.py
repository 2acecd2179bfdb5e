"""Rényi divergences of sampled steps.

Golden values are mpmath quadratures of w^a - 1 - a (w - 1) at 34 digits, w the density ratio.
"""

from __future__ import annotations

import math
import tracemalloc

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
from tests.examples import examples
from tests.unit.accounting.refusals import refused

SLACK = 1e-9  # what a cost may be above the exact value, relative, in the stated range
ORDERS = [1.1, 1.5, 2.0, 8.0, 64.0]

# noise / norm, sampling rate, order, D_a(M || P) "remove", D_a(P || M) "add"
GOLDEN = [
    (12.0, 0.4, 58.75, "0.0362021491811925897", "0.0297922167316499742"),
    (1.0, 0.1, 1.5, "0.0117345921966852369", "0.00906051470704669656"),
    (0.3, 1e-06, 1.01, "1.23330218914330815e-8", "9.04096952000299611e-9"),
    (0.3, 0.5, 1.01, "2.27071429308819107", "0.572083120597542348"),
    (0.3, 0.01, 7.25, "34.9357803620315948", "0.007456763438935914"),
    (0.3, 0.999999, 1023.5, "5686.11111011013304", "13.8031236259137848"),
    (0.65, 0.01, 3.5, "0.00342071769581276018", "0.000993516691848237762"),
    (1.0, 0.01, 32.0, "11.2462759370480689", "0.00169233677996530294"),
    (1.0, 0.9, 1.1, "0.451645225709079515", "0.402555593976380466"),
    (4.0, 0.02, 1023.5, "28.0685260552022421", "0.00637983681503770558"),
    (7.0, 1e-06, 1000.0, "1.03091304509407086e-11", "1.03087026488402671e-11"),
    (10.0, 0.5, 200.5, "0.452751659650494306", "0.168168479560449802"),
    (50.0, 0.0001, 1.01, "2.02040397384134699e-12", "2.02040389138963999e-12"),
    (200.0, 1e-06, 1.01, "1.26251578135026323e-17", "1.26251578131806844e-17"),
    (200.0, 0.3, 1024.0, "0.00115823406238747966", "0.00114585320061210398"),
    (2.0, 0.999, 64.25, "8.03023368161735173", "4.755868679491602"),
]


def logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    between = st.floats(math.log(low), math.log(high)).map(math.exp)
    return between.map(lambda value: min(max(value, low), high))


ratio = logarithmic(0.3, 200.0)
rate = st.one_of(logarithmic(1e-6, 1.0), logarithmic(1e-6, 0.5).map(lambda p: 1.0 - p))
order = st.one_of(logarithmic(0.01, 1023.0).map(lambda t: 1.0 + t), st.sampled_from(ORDERS))
wild_norm = st.one_of(st.floats(0.0, 1.7e308), logarithmic(1e-30, 1e10))
wild_rate = st.one_of(st.floats(0.0, 1.0), st.sampled_from([5e-324, 1e-100, 1.0 - 2.0**-53]))
wild_order = st.one_of(
    st.floats(1.0, 2.0**40, exclude_min=True), logarithmic(1e-15, 1e12).map(lambda t: 1.0 + t)
)


def one(s: float, q: float, a: float, norm: float = 1.0) -> float:
    mechanism = PoissonGaussian(s, q)
    return float(renyi_cost(mechanism, [norm], [a])[0, 0])


def is_just_above(result: float, exact: mpmath.mpf) -> bool:
    with mpmath.workdps(60):
        return bool(exact <= result <= exact * (1 + mpmath.mpf(SLACK)))


def binomial_sum(s: float, q: float, a: int) -> mpmath.mpf:
    """D_a(M || P) for a whole order: the moments of a Gaussian, term by term."""
    with mpmath.workdps(60):
        half, rate = 1 / (2 * mpmath.mpf(s) ** 2), mpmath.mpf(q)
        terms = (
            mpmath.binomial(a, k) * (1 - rate) ** (a - k) * rate**k * mpmath.exp(k * (k - 1) * half)
            for k in range(a + 1)
        )
        return mpmath.log(mpmath.fsum(terms)) / (a - 1)


# -------------------------------------------------------------------------------- exact values


@pytest.mark.parametrize(("s", "q", "a", "remove", "add"), GOLDEN)
def test_divergences_are_just_above_the_golden_values(
    s: float, q: float, a: float, remove: str, add: str
) -> None:
    with mpmath.workdps(40):
        assert is_just_above(one(s, q, a), mpmath.mpf(remove))
        assert mpmath.mpf(add) <= mpmath.mpf(remove)


@examples(40)
@given(ratio, rate, st.one_of(st.integers(2, 40), st.integers(2, 400)))
@example(0.3, 1e-6, 2)
@example(3.0, 0.01, 1024)
def test_whole_orders_are_just_above_the_binomial_sum(s: float, q: float, a: int) -> None:
    assert is_just_above(one(s, q, float(a)), binomial_sum(s, q, a))


# -------------------------------------------------------------------------------------- limits


@given(st.lists(logarithmic(1e-3, 100.0), max_size=6), ratio)
def test_rate_one_costs_what_the_gaussian_costs_and_zero_nothing(
    norms: list[float], s: float
) -> None:
    for cost in (renyi_cost, MEASURES["renyi"].charge_units):
        gaussian = cost(Gaussian(s), norms, ORDERS)
        np.testing.assert_array_equal(cost(PoissonGaussian(s, 1.0), norms, ORDERS), gaussian)
        assert not cost(PoissonGaussian(s, 0.0), norms, ORDERS).any()


# ---------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("q", [5e-324, 1e-9, 1e-3, 0.5, 1.0 - 1e-6, 1.0 - 2.0**-53])
def test_costs_are_monotone_in_the_norm_where_methods_meet(q: float) -> None:
    norms = np.concatenate(
        [[0.0, 5e-324, 1e-300], np.geomspace(1e-15, 1e5, 400), [1e100, 1e200, 1.7e308]]
    )
    orders = [math.nextafter(1.0, 2.0), 1.001, 1.5, 2.0, 64.0, 1e4, 3.3e6, 2.0**40]
    costs = renyi_cost(PoissonGaussian(1.0, q), norms, orders)
    finite = np.minimum(costs, 1e300)
    assert (finite[1:] >= finite[:-1] * (1.0 - SLACK)).all()


@given(wild_norm, logarithmic(1e-300, 1e300), wild_rate, wild_order)
@example(1.0, 0.01, 0.5, 1.01)
@example(1.0, 1e-200, 0.5, 2.0)
@example(1e-5, 1.0, 1e-6, 2.0**40)
@example(7.79e307, 1.3, 0.37, 1.1)
def test_no_argument_gives_less_than_the_exact_cost_or_nan(
    norm: float, s: float, q: float, a: float
) -> None:
    cost = one(s, q, a, norm)
    if norm == 0.0 or q == 0.0:
        assert cost == 0.0
        return
    assert cost > 0.0
    with mpmath.workdps(50):
        half_square = (mpmath.mpf(norm) / mpmath.mpf(s)) ** 2 / 2
        gaussian = mpmath.mpf(a) * half_square
        if cost < math.inf and gaussian > mpmath.mpf("1e-100"):
            assert cost <= gaussian * (1 + SLACK)
        # q L alone is less than 1 - q + q L.
        assert cost >= a / (mpmath.mpf(a) - 1) * mpmath.log(q) + gaussian


@given(st.lists(wild_norm, max_size=8), rate)
def test_users_together_cost_what_they_cost_alone(norms: list[float], q: float) -> None:
    together = renyi_cost(PoissonGaussian(1.3, q), norms, ORDERS)
    assert together.shape == (len(norms), len(ORDERS))
    alone = [[one(1.3, q, a, norm) for a in ORDERS] for norm in norms]
    np.testing.assert_array_equal(together, np.array(alone).reshape(together.shape))


def test_memory_holds_no_array_of_users_by_orders_by_nodes() -> None:
    norms, orders = np.linspace(0.1, 1.0, 1500), np.arange(2.0, 42.0)
    tracemalloc.start()
    try:
        costs = renyi_cost(PoissonGaussian(1.0, 0.01), norms, orders)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A pair takes at least 25 nodes, which would be 12 MB for one such array and 100 for a dozen.
    assert peak < 20e6 + costs.nbytes


# noise / norm, sampling rate, records, order, D_a(M || P) "remove", D_a(P || M) "add"
GOLDEN_OF_RECORDS = [
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
ORDERS_OF_RECORDS = [1.01, 1.5, 2.0, 4.5, 16.0, 64.0, 512.0, 1e4]


def records_cost(s: float, q: float, k: int, a: float, direction: Direction = "remove") -> float:
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


@pytest.mark.parametrize(("s", "q", "k", "a", "removed", "added"), GOLDEN_OF_RECORDS)
def test_both_directions_are_just_above_the_golden_values(
    s: float, q: float, k: int, a: float, removed: str, added: str
) -> None:
    assert is_just_above(records_cost(s, q, k, a, "remove"), mpmath.mpf(removed))
    assert is_just_above(records_cost(s, q, k, a, "add"), mpmath.mpf(added))


@pytest.mark.parametrize(
    ("s", "q", "k"),
    [(1.0, 0.01, 3), (8.0, 0.2, 12), (100.0, 1e-6, 40), (0.5, 0.999, 2), (2.0, 1e-30, 5)],
)
@pytest.mark.parametrize("order", [2, 3, 8])
def test_whole_orders_are_just_above_the_sum_over_numbers_drawn(
    s: float, q: float, k: int, order: int
) -> None:
    with mpmath.workdps(100):
        assert is_just_above(records_cost(s, q, k, order), whole_order(s, q, k, order))


def test_records_cost_what_simpler_steps_cost_at_the_limits() -> None:
    def costs(*step: float) -> np.ndarray:
        return renyi_cost(PoissonRecords(*step), [0.0, 0.3, 1.0], ORDERS_OF_RECORDS)

    one_coin = renyi_cost(PoissonGaussian(2.0, 0.1), [0.0, 0.3, 1.0], ORDERS_OF_RECORDS)
    np.testing.assert_array_equal(costs(2.0, 0.1, 1), one_coin)
    for order in (1.5, 4.0, 40.0):
        expected = renyi_cost(PoissonGaussian(2.0, 0.1), [1.0], [order])[0, 0]
        assert records_cost(2.0, 0.1, 1, order) == pytest.approx(expected, rel=1e-9)
    whole = renyi_cost(Gaussian(2.0), [0.0, 0.3, 1.0], ORDERS_OF_RECORDS)
    assert (costs(6.0, 1.0, 3) >= whole).all()  # every record is in every sum
    np.testing.assert_allclose(costs(6.0, 1.0, 3), whole, rtol=1e-12)
    assert not costs(1.0, 0.0, 4).any()
    assert not costs(1.0, 0.5, 4)[0].any()


@pytest.mark.slow
@pytest.mark.parametrize("step", [(1e-300, 0.5), (1e300, 1e-290), (1.0, 1.0 - 2.0**-53)])
def test_charges_of_extreme_steps_saturate_and_are_never_nan(step: tuple[float, float]) -> None:
    mechanism = PoissonRecords(*step, 1000)
    costs = renyi_cost(mechanism, [5e-324, 1.0, 1.7e308], [1.0 + 2.0**-52, 2.0, 2.0**40])
    assert not np.isnan(costs).any()
    assert (costs > 0.0).all()
    assert 0 < MEASURES["renyi"].charge_units(mechanism, [1.0], [2.0])[0, 0] <= MAX_COST_UNITS


def test_reports_of_records_are_by_renyi_divergences_alone() -> None:
    mechanisms = [PoissonRecords(4.0, 0.05, 6), PoissonGaussian(2.0, 0.1)]
    report = ReportAccountant(mechanisms, NormGrid(1.0, 1))
    both, first = report.epsilon([[100, 100], [100, 0]], 1e-6, "renyi")
    assert 0.0 < first < both
    for method in ("tightest", "pld", "saddlepoint"):
        with refused("mechanism"):
            report.epsilon([100, 100], 1e-6, method)
