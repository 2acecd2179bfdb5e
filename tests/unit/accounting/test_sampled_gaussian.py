"""Golden values are mpmath quadratures of (1+x)^a - 1 - a x at 40 digits, x = q (dN1/dN0 - 1)."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accounting import (
    MEASURES,
    Gaussian,
    renyi_cost,
)
from accounting.costs.mechanisms import PoissonGaussian
from tests.examples import examples

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


def is_just_above(result: float, exact: Fraction, slack: float = SLACK) -> bool:
    return exact <= Fraction(result) <= exact * (1 + Fraction(slack))


def as_fraction(value: mpmath.mpf) -> Fraction:
    return Fraction(mpmath.nstr(value, 40))


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
    assert is_just_above(one(s, q, a), Fraction(remove))
    assert Fraction(add) <= Fraction(remove)


@examples(40)
@given(ratio, rate, st.one_of(st.integers(2, 40), st.integers(2, 400)))
@example(0.3, 1e-6, 2)
@example(3.0, 0.01, 1024)
def test_whole_orders_are_just_above_the_binomial_sum(s: float, q: float, a: int) -> None:
    assert is_just_above(one(s, q, float(a)), as_fraction(binomial_sum(s, q, a)))


# -------------------------------------------------------------------------------------- limits


@given(st.lists(logarithmic(1e-3, 100.0), max_size=6), ratio)
def test_rate_one_costs_what_the_gaussian_costs_and_rate_zero_nothing(
    norms: list[float], s: float
) -> None:
    gaussian = Gaussian(s)
    everybody, nobody = PoissonGaussian(s, 1.0), PoissonGaussian(s, 0.0)
    expected = renyi_cost(gaussian, norms, ORDERS)
    np.testing.assert_array_equal(renyi_cost(everybody, norms, ORDERS), expected)
    np.testing.assert_array_equal(
        MEASURES["renyi"].charge_units(everybody, norms, ORDERS),
        MEASURES["renyi"].charge_units(gaussian, norms, ORDERS),
    )
    assert not renyi_cost(nobody, norms, ORDERS).any()
    assert not MEASURES["renyi"].charge_units(nobody, norms, ORDERS).any()


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


@given(st.lists(wild_norm, max_size=8), rate, st.randoms(use_true_random=False))
def test_users_together_cost_what_they_cost_alone_in_any_order(
    norms: list[float], q: float, random
) -> None:
    mechanism = PoissonGaussian(1.3, q)
    together = renyi_cost(mechanism, norms, ORDERS)
    assert together.shape == (len(norms), len(ORDERS))
    shuffled = list(range(len(norms)))
    random.shuffle(shuffled)
    again = renyi_cost(mechanism, [norms[i] for i in shuffled], ORDERS[::-1])
    np.testing.assert_array_equal(together[shuffled][:, ::-1], again)
    for i, norm in enumerate(norms):
        alone = [one(1.3, q, a, norm) for a in ORDERS]
        np.testing.assert_array_equal(together[i], alone)


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
