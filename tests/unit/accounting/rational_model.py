"""The same rules in rational arithmetic, written apart from the code under test."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import strategies as st

UNIT = Fraction(1, 2**44)
CAP = 2**62


def rho(norm: float, scale: float) -> Fraction:
    return Fraction(norm) ** 2 / (2 * Fraction(scale) ** 2)


def units(value: Fraction) -> int:
    return min(math.ceil(value / UNIT), CAP)


def zcdp_units(norm: float, scale: float) -> int:
    return units(rho(norm, scale))


def gdp_units(norm: float, scale: float) -> int:
    return units(2 * rho(norm, scale))


def renyi_units(norm: float, scale: float, order: float) -> int:
    return min(math.ceil(Fraction(order) * zcdp_units(norm, scale)), CAP)


def pure_renyi_units(norm: float, scale: float, order: float) -> int:
    """Units of a Laplace step: the least of two bounds."""
    return min(renyi_units(norm, scale, order), units(Fraction(norm) / Fraction(scale)))


def fits(spent: list[int], costs: list[Fraction], budgets: list[Fraction]) -> bool:
    """Whether a step fits at every order: `spent` in units, costs and budgets exact."""
    return all(
        used + units(cost) <= budget // UNIT
        for used, cost, budget in zip(spent, costs, budgets, strict=True)
    )


def largest_float_at_most(value: Fraction) -> float:
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)


def is_smallest_float_at_least(result: float, exact: Fraction) -> bool:
    if exact == 0:
        return result == 0.0
    if result == math.inf:
        return exact > Fraction(math.nextafter(math.inf, 0.0))
    return Fraction(result) >= exact > Fraction(math.nextafter(result, 0.0))


def is_cost(result: float, exact: Fraction) -> bool:
    """Whether `result` is `exact` rounded up; in the outermost ranges, above it and usable."""
    if exact == 0 or 2.0**-797 < exact < 2.0**797:
        return is_smallest_float_at_least(result, exact)
    return exact <= result <= 2.0**-700 if exact < 1 else result == math.inf or exact <= result


any_norm = st.floats(min_value=0.0, allow_infinity=False, allow_nan=False)
usual_norm = st.one_of(
    st.floats(min_value=0.0, max_value=4.0),
    st.integers(0, 4096).map(lambda i: i / 1024),
    st.integers(0, 300).map(lambda i: i / 100),
    st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.5, 1.0, 1 / 3]),
)
usual_scale = st.one_of(
    st.floats(min_value=0.05, max_value=200.0),
    st.sampled_from([0.1, 0.25, 0.3, 1.0, 3.0, 4.0, 10.61, 100.0]),
)
any_scale = st.floats(
    min_value=0.0, exclude_min=True, allow_infinity=False, allow_nan=False, allow_subnormal=True
)
order = st.one_of(
    st.floats(min_value=1.0, max_value=1000.0, exclude_min=True),
    st.sampled_from([1.1, 1.5, 2.0, 3.0, 8.0, 32.0, 64.0, 256.0]),
    st.floats(min_value=1.0, max_value=2.0**40, exclude_min=True),
)
