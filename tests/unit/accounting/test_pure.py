"""Pure DP: epsilons add up; and what an epsilon is in Rényi DP and in Gaussian DP."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from accounting import (
    MEASURES,
    InvalidInput,
    Laplace,
    PureDP,
    PureDPFilter,
    candidate_orders,
    cost_units,
    from_units,
    gdp_to_delta,
    grid_norms,
    pure_to_gdp,
    renyi_cost,
)

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
def test_gaussian_dp_of_that_mu_dominates_randomised_response(
    epsilon: float,
) -> None:
    """Its delta is above that of randomised response everywhere, and touches it at 0."""
    mu = float(pure_to_gdp(epsilon))
    for point in np.linspace(0.0, epsilon, 30).tolist():
        response = (math.exp(epsilon) - math.exp(point)) / (1.0 + math.exp(epsilon))
        assert gdp_to_delta(mu, point) >= response
    assert gdp_to_delta(mu, 0.0) == pytest.approx(math.tanh(epsilon / 2.0), rel=1e-9)


def test_gdp_cost_table_of_pure_dp_is_mu_squared_rounded_up() -> None:
    laplace, pure = (
        MEASURES["gdp"].cost_table(Laplace(2.0), 2.0, 50),
        MEASURES["gdp"].cost_table(PureDP(), 1.0, 50),
    )
    for level in range(1, 51):
        exact = exact_mu(level / 50) ** 2 * 2**44
        assert exact <= pure[level] <= exact * (1 + mpmath.mpf(2) ** -40) + 1
        assert 0 <= laplace[level] - pure[level] <= 2
    with pytest.raises(InvalidInput):
        MEASURES["gdp"].charge_units(Laplace(2.0), [1.0])


def test_admitted_randomised_responses_are_epsilon_dp() -> None:
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


# --- Rényi divergences ---

DIVERGENCE_ORDERS = [1.0 + 2.0**-30, 1.01, 1.5, 2.0, 8.0, 64.0, 1000.0, 2.0**30]


def exact_divergence(mechanism: Laplace | PureDP, eps: float, order: float) -> mpmath.mpf:
    """Of the worst pair of outputs: randomised response, or Laplace noise around two places."""
    with mpmath.workdps(80):
        e, a = mpmath.mpf(eps), mpmath.mpf(order)
        # The factor e^((a-1) eps) stands in front, so that no power is beyond all numbers.
        if isinstance(mechanism, Laplace):
            rest = a / (2 * a - 1) + (a - 1) / (2 * a - 1) * mpmath.exp((1 - 2 * a) * e)
        else:
            rest = (1 + mpmath.exp((1 - 2 * a) * e)) / (1 + mpmath.exp(-e))
        return e + mpmath.log(rest) / (a - 1)


@pytest.mark.parametrize("mechanism", [Laplace(1.0), PureDP()], ids=repr)
@pytest.mark.parametrize("eps", [1e-9, 1e-4, 0.01, 0.5, 1.0, 2.0, 30.0, 800.0])
def test_divergences_of_pure_steps_are_the_exact_ones_rounded_up(mechanism, eps) -> None:
    found = renyi_cost(mechanism, [eps], DIVERGENCE_ORDERS)[0]
    for order, cost in zip(DIVERGENCE_ORDERS, found.tolist(), strict=True):
        exact = exact_divergence(mechanism, eps, order)
        assert exact <= cost <= exact + mpmath.mpf(2) ** -46 * eps


@pytest.mark.parametrize("order", [1.3, 2.0, 7.5])
@pytest.mark.parametrize("eps", [0.3, 1.0, 2.0])
def test_divergences_of_pure_steps_are_those_of_their_definitions(order, eps) -> None:
    total = 1.0 + math.exp(eps)
    response = [math.exp(eps) / total, 1.0 / total], [1.0 / total, math.exp(eps) / total]
    summed = sum(p**order * q ** (1.0 - order) for p, q in zip(*response, strict=True))
    assert math.log(summed) / (order - 1.0) == pytest.approx(
        renyi_cost(PureDP(), [eps], [order])[0, 0], rel=1e-12
    )

    def density(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.exp(-order * abs(x) - (1.0 - order) * abs(x - eps)) / 2

    summed = mpmath.quad(density, [-mpmath.inf, 0, eps, mpmath.inf])
    assert float(mpmath.log(summed)) / (order - 1.0) == pytest.approx(
        renyi_cost(Laplace(1.0), [eps], [order])[0, 0], rel=1e-12
    )


@pytest.mark.parametrize("mechanism", [Laplace(0.3), PureDP()], ids=repr)
def test_charges_of_pure_steps_are_no_less_than_divergences(mechanism) -> None:
    norms = np.concatenate([[0.0, 5e-324, 1e-200], np.geomspace(1e-12, 1e4, 200), [1e300]])
    charged = MEASURES["renyi"].charge_units(mechanism, norms, DIVERGENCE_ORDERS)
    in_tables = MEASURES["renyi"].cost_table(mechanism, 2.0, 255, DIVERGENCE_ORDERS)
    on_levels = MEASURES["renyi"].charge_units(mechanism, grid_norms(2.0, 255), DIVERGENCE_ORDERS)
    # But for the rounding of float64, which the charge in whole units does not have.
    least = cost_units(renyi_cost(mechanism, norms, DIVERGENCE_ORDERS)) * (1 - 2.0**-50) - 1
    assert (charged >= least).all()
    assert (in_tables <= on_levels + 1).all()
    assert (in_tables < on_levels)[200:, 3:-1].all()


def test_large_orders_charge_a_pure_step_its_epsilon_at_most() -> None:
    assert MEASURES["renyi"].charge_units(PureDP(), [2.0], [100.0])[0, 0] == 2 * 2**44
    assert renyi_cost(PureDP(), [2.0], [100.0])[0, 0] == pytest.approx(1.99872, abs=1e-5)
    orders, budgets = candidate_orders(8.0, 1e-5)
    explicit = from_units(MEASURES["renyi"].charge_units(Laplace(1.0), [0.5], orders)[0])
    in_tables = renyi_cost(Laplace(1.0), [0.5], orders)[0]
    # How often a user is admitted, by explicit charges and by a cost table.
    assert [(budgets // cost).max() for cost in (explicit, in_tables)] == [9, 15]
