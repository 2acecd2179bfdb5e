"""Pure DP: epsilons add up; and what an epsilon is in Gaussian DP."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    Gaussian,
    InvalidInput,
    Laplace,
    LocalFilter,
    PoissonGaussian,
    PureDP,
    PureDPFilter,
    charge_units,
    gdp_to_delta,
    pure_to_gdp,
    tariff,
)
from tests.unit.accounting import rational_model as model

EPSILONS = [1e-100, 1e-12, 1e-6, 1e-3, 0.1, 0.5, 0.999999, 1.0, 1.000001, 2.0, 7.0, 36.0, 200.0]


def exact_mu(epsilon: float) -> mpmath.mpf:
    """2 Phi^-1(e^eps / (1 + e^eps)), solved in many digits."""
    with mpmath.workdps(80 + int(-math.log10(epsilon)) if epsilon < 1 else 80 + int(epsilon)):
        tail = 1 / (1 + mpmath.exp(epsilon))
        if epsilon <= 1:
            return 2 * mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail)
        start = mpmath.sqrt(2 * epsilon)
        return 2 * mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(-x) / tail), start)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_mu_of_pure_dp_is_the_least_and_rounded_up(epsilon: float) -> None:
    mu, exact = float(pure_to_gdp(epsilon)), exact_mu(epsilon)
    assert mu >= exact
    assert mu <= exact * (1 + mpmath.mpf(2) ** -42)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 10.0])
def test_gaussian_dp_of_that_mu_is_no_harder_to_tell_than_randomised_response(
    epsilon: float,
) -> None:
    """Its delta is above that of randomised response everywhere, and touches it at 0."""
    mu = float(pure_to_gdp(epsilon))
    for point in np.linspace(0.0, epsilon, 30).tolist():
        response = (math.exp(epsilon) - math.exp(point)) / (1.0 + math.exp(epsilon))
        assert gdp_to_delta(mu, point) >= response
    assert gdp_to_delta(mu, 0.0) == pytest.approx(math.tanh(epsilon / 2.0), rel=1e-9)


def test_mu_of_pure_dp_rises_and_has_no_gap_where_methods_meet() -> None:
    points = np.sort(np.concatenate([np.geomspace(1e-9, 1e6, 2000), [1.0, 600.0, 600.0001]]))
    mu = pure_to_gdp(points)
    assert (np.diff(mu) > 0.0).all()
    assert pure_to_gdp([0.0, math.inf]).tolist() == [0.0, math.inf]
    assert float(pure_to_gdp(600.0001)) <= 1.01 * float(pure_to_gdp(600.0))
    with pytest.raises(InvalidInput):
        pure_to_gdp(-1.0)


def test_a_tariff_of_pure_dp_under_gdp_is_mu_squared_rounded_up() -> None:
    laplace, pure = tariff("gdp", Laplace(2.0), 2.0, 50), tariff("gdp", PureDP(), 1.0, 50)
    for level in range(1, 51):
        exact = exact_mu(level / 50) ** 2 * 2**44
        assert exact <= pure[level] <= exact * (1 + mpmath.mpf(2) ** -40) + 1
        assert 0 <= laplace[level] - pure[level] <= 2
    with pytest.raises(InvalidInput, match="by a tariff"):
        charge_units("gdp", Laplace(2.0), [1.0])


@given(st.lists(model.usual_norm, min_size=1, max_size=8), model.usual_scale)
def test_epsilon_of_a_laplace_step_is_charged_exactly(norms: list[float], scale: float) -> None:
    units = charge_units("pure-dp", Laplace(scale), norms).tolist()
    assert units == [model.units(Fraction(norm) / Fraction(scale)) for norm in norms]
    assert charge_units("pure-dp", PureDP(), norms).tolist() == [
        model.units(Fraction(norm)) for norm in norms
    ]


@pytest.mark.parametrize("step", [Gaussian(1.0), PoissonGaussian(1.0, 0.5)], ids=repr)
def test_no_epsilon_bounds_gaussian_noise(step: Gaussian) -> None:
    with pytest.raises(InvalidInput, match="mechanism"):
        charge_units("pure-dp", step, [1.0])


@given(st.floats(0.0, 4.0), st.lists(st.tuples(model.usual_norm, model.usual_scale), max_size=20))
def test_epsilons_of_admitted_steps_never_exceed_the_budget_in_fractions(
    epsilon: float, steps: list[tuple[float, float]]
) -> None:
    rule = PureDPFilter(epsilon)
    state, spent, charged = rule.initial_state(1), Fraction(0), Fraction(0)
    for norm, scale in steps:
        state, admitted = rule.admit_norms(state, Laplace(scale), [norm])
        cost = Fraction(norm) / Fraction(scale)
        assert bool(admitted[0]) == (cost == 0 or charged + cost <= Fraction(epsilon))
        if admitted[0]:
            spent += cost
            charged += Fraction(model.units(cost), 2**44)
    assert spent <= Fraction(epsilon)


def test_ten_steps_of_a_tenth_are_admitted_and_no_more() -> None:
    rule = PureDPFilter(Fraction(10) * Fraction(0.1))
    state = rule.initial_state(1)
    admitted = []
    for _ in range(11):
        state, ok = rule.admit_norms(state, PureDP(), [0.1])
        admitted.append(bool(ok[0]))
    # Each is charged a unit's fraction too much: the tenth is decided on the exact numbers.
    assert admitted == [True] * 9 + [False] * 2
    assert PureDPFilter(1.25).admit(np.zeros(1, dtype=np.int64), [1.25])[1].all()


@given(st.floats(0.01, 2.0), st.floats(0.1, 10.0), st.lists(st.floats(0.01, 20.0), min_size=1))
def test_norms_of_laplace_steps_are_granted_to_the_end_and_no_further(
    epsilon: float, scale: float, norms: list[float]
) -> None:
    rule = PureDPFilter(epsilon)
    state, spent = rule.initial_state(1), Fraction(0)
    for norm in norms:
        state, granted = rule.grant(state, Laplace(scale), [norm])
        assert granted[0] <= norm
        spent += Fraction(float(granted[0])) / Fraction(scale)
        assert rule.exhausted(state)[0] or granted[0] == norm
    assert spent <= Fraction(epsilon)


def test_randomised_response_as_often_as_admitted_is_epsilon_dp() -> None:
    """The likelihood ratio of every path of an adaptive run, both ways, by enumeration."""
    budget, choices = 1.0, (0.7, 0.3, 0.4)
    rule = PureDPFilter(budget)

    def worst(ratio: float, state: np.ndarray, step: int) -> float:
        if step == 4:
            return ratio
        # The next epsilon depends on what was answered so far.
        epsilon = choices[(step + round(ratio * 10)) % 3]
        after, admitted = rule.admit_norms(state, PureDP(), [epsilon])
        if not admitted[0]:
            return worst(ratio, after, step + 1)
        return max(worst(ratio * math.exp(sign * epsilon), after, step + 1) for sign in (1, -1))

    largest = worst(1.0, rule.initial_state(1), 0)
    assert 1.0 < largest <= math.exp(budget) * (1 + 1e-12)


def test_a_device_runs_the_filter_too() -> None:
    device = LocalFilter(PureDPFilter(1.0))
    assert device.admit(PureDP(), 0.75)
    assert not device.admit(PureDP(), 0.5)
    assert device.grant(Laplace(2.0), 4.0) == pytest.approx(0.5, rel=1e-12)
    assert device.exhausted
