"""Reports by every method: what they agree on, and the tightest of them."""

from __future__ import annotations

import math
from contextlib import suppress
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from accounting import (
    Gaussian,
    InvalidInput,
    Laplace,
    Mechanism,
    PoissonGaussian,
    PoissonRecords,
    PureDP,
    gdp_to_delta,
    gdp_to_epsilon,
    renyi_cost,
    renyi_to_delta,
    renyi_to_epsilon,
    zcdp_to_epsilon,
)
from accounting.reports import METHODS, Method, NormGrid, ReportAccountant
from accounting.reports.pld.pld_report import PldReport
from accounting.reports.renyi_report import DEFAULT_ORDERS, RenyiReport
from accounting.reports.saddlepoint import SaddlePointReport
from tests.examples import examples, grid
from tests.unit.accounting.exact_deltas import gaussian_delta

GRID = NormGrid(1.0, 10)
MECHANISMS: list[Mechanism] = [Gaussian(2.0), PoissonGaussian(1.0, 0.05), Laplace(2.0), PureDP()]
COUNTS = np.random.default_rng(0).integers(0, 20, (7, 10))
COUNTS[3] = 0


def accountant(mechanism: Mechanism) -> ReportAccountant:
    return ReportAccountant(mechanism, GRID)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_values_are_upper_bounds_beside_their_interval(
    mechanism: Mechanism, method: Method
) -> None:
    reports = accountant(mechanism)
    epsilon = reports.epsilon(COUNTS, 1e-5, method=method)
    delta = reports.delta(COUNTS, 40.0 if mechanism in MECHANISMS[2:] else 0.5, method=method)
    for values in (epsilon, delta):
        lower, estimate, upper = values.bounds
        assert values.shape == lower.shape == estimate.shape == (7,)
        assert values.dtype == np.float64
        np.testing.assert_array_equal(values, upper)
        assert (lower >= 0.0).all()
        assert (lower <= estimate).all()
        assert (estimate <= upper).all()
        assert values[3] == 0.0
    assert (delta <= 1.0).all()
    assert np.delete(epsilon, 3).min() > 0.0
    # The divergences are as good as the saddle point's interval, and no better than the others.
    most = 1.1 if method == "saddlepoint" else 1.0 + 1e-5
    assert (epsilon <= reports.epsilon(COUNTS, 1e-5, "renyi") * most).all()


@pytest.mark.parametrize("method", METHODS)
def test_users_have_the_same_report_alone_and_in_any_layout(method: Method) -> None:
    reports = accountant(MECHANISMS[1])
    together = reports.epsilon(COUNTS, 1e-5, method)
    alone = reports.epsilon(COUNTS[0], 1e-5, method)
    assert alone.shape == alone.bounds.lower.shape == ()
    assert float(alone) == float(together[0])
    assert f"{alone:.3f}" == f"{together[0]:.3f}"
    for counts in (COUNTS.astype(np.uint8), np.asfortranarray(COUNTS), COUNTS.tolist()):
        np.testing.assert_array_equal(reports.epsilon(counts, 1e-5, method), together)
    for nobody in (reports.epsilon(COUNTS[:0], 1e-5, method), reports.delta(COUNTS[:0], 1, method)):
        assert nobody.shape == nobody.bounds.estimate.shape == (0,)


def test_what_is_computed_from_a_report_is_a_plain_array() -> None:
    values = accountant(MECHANISMS[0]).epsilon(COUNTS, 1e-5, "renyi")
    for derived in (values * 2.0, np.sqrt(values), values > 1.0, values + values, np.copy(values)):
        assert type(derived) is np.ndarray
    for number in (values.max(), values[2], values[()].sum()):
        assert type(number) is np.float64
    assert not values.flags.writeable
    assert not any(part.flags.writeable for part in values.bounds)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_several_mechanisms_have_their_histograms_side_by_side(method: Method) -> None:
    sampled, laplace, grid = PoissonGaussian(1.0, 0.05), Laplace(20.0), NormGrid(2.0, 3)
    both = ReportAccountant([sampled, laplace], [GRID, grid])
    parts, apart = [COUNTS[:2], np.array([[3, 1, 2], [0, 0, 9]])], []
    for number, (step, levels) in enumerate([(sampled, GRID), (laplace, grid)]):
        counts = np.hstack([part * (number == at) for at, part in enumerate(parts)])
        apart.append(both.epsilon(counts, 1e-5, method))
        alone = ReportAccountant(step, levels).epsilon(parts[number], 1e-5, method)
        np.testing.assert_allclose(apart[-1], alone, rtol=2e-3)
    together = both.epsilon(np.hstack(parts), 1e-5, method)
    assert (together > np.maximum(*apart)).all()
    assert (together <= (apart[0] + apart[1]) * 1.1).all()
    one_grid = ReportAccountant([sampled, laplace], GRID)
    assert one_grid.epsilon(np.ones(20, np.int64), 1e-5).shape == ()


PUBLISHED: dict[Method, tuple[float, float]] = {
    **dict.fromkeys(("tightest", "pld", "saddlepoint"), (1.828, 7.751)),
    "renyi": (2.10, 8.83),
}


@pytest.mark.parametrize("method", PUBLISHED)
def test_epsilons_of_dp_sgd_are_the_published_ones(method: Method) -> None:
    for noise, steps, published in zip((1.0, 0.65), (1000, 2000), PUBLISHED[method], strict=True):
        report = ReportAccountant(PoissonGaussian(3.0 * noise, 0.01), NormGrid(3.0, 1))
        lower, estimate, upper = report.epsilon([steps], 1e-5, method).bounds
        if method == "saddlepoint":
            assert lower <= published <= upper
            assert estimate == pytest.approx(published, rel=0.02)
        else:
            assert lower <= estimate <= upper == pytest.approx(published, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PldReport, SaddlePointReport])
@pytest.mark.parametrize("step", [Gaussian(4.0), PoissonGaussian(4.0, 1.0)])
def test_unsampled_steps_agree_with_gaussian_dp_far_into_the_tail(kind: type, step) -> None:
    norms = np.array([0.1, 0.25, 1.0])
    counts = np.array([[400, 30, 2], [0, 0, 1], [10**6, 0, 0], [0, 0, 50]])
    mu, report = np.sqrt(counts @ norms**2) / 4.0, kind([step] * 3, norms)
    for delta in (0.3, 1e-5, 1e-60, 1e-250):
        bounds, exact = report.epsilon(counts, delta), gdp_to_epsilon(mu, delta)
        assert (bounds.lower <= exact).all()
        assert (exact <= bounds.upper * (1.0 + 1e-12)).all()
        np.testing.assert_allclose(bounds.upper, bounds.lower, rtol=5e-3, atol=1e-6)
    for epsilon in (0.0, 0.5, 4.0, 20.0):
        bounds, exact = report.delta(counts, epsilon), gdp_to_delta(mu, epsilon)
        assert (bounds.lower <= exact * (1.0 + 1e-11)).all()
        assert (exact <= bounds.upper * (1.0 + 1e-11) + 1e-322).all()


@pytest.mark.parametrize("method", METHODS)
def test_no_steps_and_a_rate_of_zero_lose_nothing(method: Method) -> None:
    for rate, counts in ((0.0, [5] * 10), (0.1, [0] * 10)):
        report = accountant(PoissonGaussian(1.0, rate))
        for found in (report.epsilon(counts, 1e-300, method), report.delta(counts, 0.0, method)):
            assert [*found.bounds] == [0.0] * 3


EXTREMES = [  # norm to noise, rate
    *((1e-200, 1.0), (1e-9, 1.0 - 1e-9), (1e-3, 1e-300), (100.0, 1e-6), (1e3, 0.5), (1e200, 0.5)),
    *((5.4, 1.0 - 2.0**-52), (1e-6, 0.999), (127.0, 0.5), (1e-300, 5e-324), (134.0, 0.0476)),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
@pytest.mark.parametrize("method", ["tightest", "saddlepoint"])
@pytest.mark.parametrize(("history", "count"), grid(EXTREMES, [1, 1000, 2**46]))
def test_extreme_histories_give_ordered_bounds(
    history: tuple[float, float], count: int, method: Method
) -> None:
    """The saddle point may refuse: then its interval would say nothing."""
    ratio, rate = history
    report = ReportAccountant(PoissonGaussian(1.0, rate), NormGrid(ratio, 2))
    asked = [(report.delta, epsilon) for epsilon in (0.0, 1.0, 50.0, 1e6, 1e300)]
    asked += [(report.epsilon, delta) for delta in (1.0 - 2.0**-53, 0.5, 1e-5, 1e-300)]
    for ask, level in asked:
        with suppress(InvalidInput if method == "saddlepoint" else ()):
            lower, estimate, upper = ask([[0, count], [count, 0]], level, method).bounds
            assert (lower >= 0.0).all()
            assert (lower <= estimate).all()
            assert (estimate <= upper).all()
            assert ask == report.epsilon or (upper <= 1.0).all()


@pytest.mark.parametrize("method", METHODS)
def test_delta_at_the_largest_epsilons_is_next_to_nothing(method: Method) -> None:
    for epsilon in (1e200, 1e308):
        found = accountant(MECHANISMS[1]).delta(COUNTS[0], epsilon, method).bounds
        assert found.lower == 0.0
        assert found.upper < 1e-80


def test_extreme_gaussian_histories_have_valid_lower_bounds() -> None:
    # delta is 0 to hundreds of digits at the large epsilon, and below the ratio at epsilon 0.
    for ratio, epsilon in ((1e13, 1e30), (1e-200, 0.0)):
        report = ReportAccountant(Gaussian(1.0 / ratio), NormGrid(1.0, 1))
        assert report.delta([1], epsilon).bounds.lower == 0.0
    bounds = ReportAccountant(Gaussian(1e-120), NormGrid(1.0, 1)).epsilon([1], 1e-5).bounds
    assert bounds.lower < bounds.upper == math.inf


# ------------------------------------------------------------------------- the tightest report


@pytest.mark.slow
def test_delta_is_not_useless_where_one_method_can_say_nothing() -> None:
    delta = ReportAccountant(PoissonGaussian(0.3, 1e-5), NormGrid(1.0, 1)).delta([10**5], 1.0)
    assert delta.bounds.lower <= float(delta) <= 0.01529


@pytest.mark.slow
@examples(5)
@given(
    st.floats(-4.0, 0.0).map(lambda x: 10.0**x),
    st.floats(0.4, 6.0),
    st.lists(st.integers(0, 200), min_size=4, max_size=4),
    st.floats(-9.0, -0.2).map(lambda x: 10.0**x),
)
def test_tightest_is_the_least_of_both_methods(
    rate: float, noise: float, history: list[int], delta: float
) -> None:
    report = ReportAccountant(PoissonGaussian(noise, rate), NormGrid(1.0, 4))
    for level, ask in ((delta, report.epsilon), (3.0 * noise * delta, report.delta)):
        found = ask(history, level)
        least = min(float(ask(history, level, method)) for method in ("pld", "renyi"))
        assert float(found) <= least
        for method in ("pld", "renyi", "saddlepoint"):
            other = ask(history, level, method)
            assert found.bounds.lower <= float(other)
            assert other.bounds.lower <= float(found)


@examples(15)
@given(
    st.floats(-2.0, 2.0).map(lambda x: 10.0**x),
    st.lists(st.integers(0, 10**4), min_size=10, max_size=10).filter(any),
    st.floats(-250.0, -0.1).map(lambda x: 10.0**x),
)
def test_gaussian_histories_are_exact_and_near_their_best_order(
    noise: float, history: list[int], delta: float
) -> None:
    report = accountant(Gaussian(noise))
    bounds = report.epsilon(history, delta).bounds
    by_renyi = float(report.epsilon(history, delta, "renyi"))
    with mpmath.workdps(400):
        squares = sum(n * mpf(c) ** 2 for n, c in zip(history, GRID.norms.tolist(), strict=True))
        mu = mpmath.sqrt(squares) / mpf(noise)
        assert gaussian_delta(mu, float(bounds.upper)) <= mpf(delta)
        assert gaussian_delta(mu, by_renyi) <= mpf(delta)
        if bounds.lower > 0.0:
            assert gaussian_delta(mu, float(bounds.lower)) >= mpf(delta)
        at = min(float(bounds.upper), 1e5)
        exact, found = gaussian_delta(mu, at), report.delta(history, at).bounds
        assert mpf(float(found.lower)) <= exact <= mpf(float(found.upper))
        assert exact <= float(report.delta(history, at, "renyi"))
    assert bounds.upper - bounds.lower <= 1e-9 * bounds.upper + 1e-9 * math.sqrt(float(squares))
    if 1e-12 < delta < 0.1 and mu < 30.0:
        assert by_renyi <= float(zcdp_to_epsilon(float(mu * mu / 2), delta)) * 1.002 + 1e-12


@pytest.mark.parametrize(
    ("noise", "rate"), [(1e-3, 0.01), (1e-3, 0.999), (7e-3, 0.5), (0.1, 1.0 - 1e-9)]
)
def test_sampled_histories_are_not_above_those_without_sampling(noise: float, rate: float) -> None:
    histories = [[100, 0], [3, 2]]  # the second mechanism is not sampled
    sampled, whole = (
        ReportAccountant([step, Gaussian(noise)], NormGrid(1.0, 1))
        for step in (PoissonGaussian(noise, rate), Gaussian(noise))
    )
    most = 1.0 + 1e-12
    assert (sampled.epsilon(histories, 1e-5) <= whole.epsilon(histories, 1e-5) * most).all()
    for epsilon in (0.0, 50.0, 90.0, 5e3) if noise == 0.1 else ():
        assert sampled.delta([1, 0], epsilon) <= whole.delta([1, 0], epsilon) * most


def test_bound_without_sampling_includes_pure_dp_steps() -> None:
    report = ReportAccountant([PoissonGaussian(0.5, 0.5), Laplace(0.01)], NormGrid(1.0, 1))
    assert report.epsilon([1, 1], 1e-5) > report.epsilon([1, 0], 1e-5) + 80.0
    assert report.delta([1, 1], 50.0) > 0.5


# ------------------------------------------------------------------------- Rényi divergences

ORDERS = [1.25, 2.0, 3.5, 8.0, 64.0, 1000.0]


@pytest.mark.parametrize("mechanism", [*MECHANISMS, PoissonGaussian(0.7, 1.0)], ids=str)
def test_divergences_are_the_sums_of_the_costs_of_all_steps(mechanism: Mechanism) -> None:
    counts = np.vstack([COUNTS[:3], np.random.default_rng(1).integers(0, 2**46, (3, 10))])
    counts[-1] = 2**46
    report = RenyiReport([mechanism] * 10, GRID.norms, ORDERS)
    found, table = report.divergences(counts), renyi_cost(mechanism, GRID.norms, ORDERS)
    for user, row in enumerate(counts.tolist()):
        for column, costs in enumerate(table.T.tolist()):
            exact = sum(Fraction(cost) * n for cost, n in zip(costs, row, strict=True))
            assert exact <= Fraction(float(found[user, column])) <= exact * Fraction(1 + 1e-13)
    epsilons, deltas = report.epsilon(counts, 1e-6).upper, report.delta(counts, 50.0).upper
    np.testing.assert_allclose(epsilons, renyi_to_epsilon(ORDERS, found, 1e-6), rtol=1e-12)
    np.testing.assert_allclose(deltas, renyi_to_delta(ORDERS, found, 50.0), rtol=1e-9)
    whole = ReportAccountant(mechanism, GRID, orders=ORDERS).epsilon(counts, 1e-6, "renyi")
    np.testing.assert_array_equal(whole, epsilons)


@given(st.floats(-2.0, 4.8), st.sampled_from([1e-12, 1e-5, 0.01]))
def test_default_orders_are_nearly_as_good_as_the_best(log_t: float, delta: float) -> None:
    # The rho whose best order is 1 + t, up to the constants of the conversion.
    rho = -math.log(delta) / 100.0**log_t
    epsilon = float(renyi_to_epsilon(DEFAULT_ORDERS, rho * DEFAULT_ORDERS, delta))
    best = float(zcdp_to_epsilon(rho, delta))
    assert best * (1 - 1e-12) <= epsilon <= best * 1.002 + 1e-5 * math.sqrt(rho)


def test_infinite_divergence_affects_only_users_who_had_it() -> None:
    # At order 1000 the second level costs more than the largest float64.
    step, counts = PoissonGaussian(1.0, 1.0 - 2.0**-50), np.array([[1, 0], [1, 1]])
    report = RenyiReport([step] * 2, np.array([1.0, 1e153]), [2.0, 1000.0])
    divergences = report.divergences(counts)
    assert divergences[0] == pytest.approx([1.0, 500.0])
    assert np.isinf(divergences).tolist() == [[False, False], [False, True]]
    assert report.epsilon(counts, 1e-5).upper[0] < 20.0
    assert report.delta(counts[1:], 1.0).upper.tolist() == [1.0]


@pytest.mark.parametrize("method", ["tightest", "pld", "saddlepoint"])
def test_records_with_coins_of_their_own_have_a_renyi_report_alone(method: Method) -> None:
    accountant, counts = ReportAccountant(PoissonRecords(1.0, 0.1, 3), NormGrid(1.0, 2)), [1, 2]
    with pytest.raises(InvalidInput) as refused:
        accountant.epsilon(counts, 1e-5, method)
    assert refused.value.argument == "mechanism"
    assert 0.0 < accountant.epsilon(counts, 1e-5, "renyi") < math.inf
