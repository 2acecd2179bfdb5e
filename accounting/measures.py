"""The measures in which budgets are counted: one row of `MEASURES` each.

    name        a budget is      counted in     steps it covers             guarantee
    renyi       nats per order   nats           all                         FZ Thm 4.3, 4.5, Rem 4.4
    zcdp        rho, in nats     rho            Gaussian, Laplace, PureDP   FZ Remark 4.4, Thm 4.9
    gdp         mu               mu squared     Gaussian (and see below)    K Thm 11, 12
    pure-dp     epsilon          epsilon        Laplace, PureDP             FZ Thm 4.3
    steps       a number N       steps          those of one public shape   docs/research/filters.md

FZ: Feldman and Zrnic (arXiv numbering). K: Koskela, Tobaben and Honkela. Neighbouring datasets
differ by adding or removing one user.

Callers ask a row instead of comparing its name. `steps_measure` makes the row of a shape of steps;
`MEASURES` has the other rows. Costs are rounded up, budgets down, and reported spends up. A norm of
0 costs nothing under every measure: the ledger charges it to users whom it leaves out of a step.

Most charges are rational numbers, the same on every machine, and may be computed anywhere. Charges
of Poisson-sampled steps, and the tightest charges of pure DP steps under gdp and renyi, need exp,
log or the normal quantile, whose last digits differ between machines; for these,
`Measure.needs_table` is true. A log holds such charges as integers, computed once as a cost table.
Under renyi, pure DP steps can also be charged without a cost table, at min(a eps^2 / 2, eps).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from accounting.conversions.gdp import gdp_budget, gdp_to_epsilon
from accounting.conversions.renyi import renyi_budgets, renyi_to_epsilon
from accounting.conversions.risk import Risk, curve_deltas, curve_risk, gdp_risk
from accounting.conversions.zcdp import zcdp_budget, zcdp_to_epsilon
from accounting.costs.costs import renyi_table_units, renyi_units
from accounting.costs.mechanisms import (
    UNSAMPLED,
    Gaussian,
    Laplace,
    Mechanism,
    PoissonGaussian,
    PoissonRecords,
    PureDP,
    simplified,
)
from accounting.costs.norm_levels import MAX_LEVELS, grid_norms
from accounting.costs.power_cost import GDP, PURE, ZCDP
from accounting.costs.pure import gdp_units_of_pure
from accounting.costs.step_shape import ONE_STEP, StepShape
from accounting.exact.argument_checks import (
    FloatArray,
    IntArray,
    choice,
    nonnegative_array,
    nonnegative_finite,
    probability,
    renyi_orders,
    whole_array,
    whole_number,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.rounding import DOWN, float_toward
from accounting.exact.units import MAX_BUDGET_UNITS, from_units, from_units_down
from accounting.filters.budget_filter import BudgetFilter
from accounting.filters.measure_filters import (
    GdpFilter,
    PureDPFilter,
    RenyiFilter,
    StepsFilter,
    ZcdpFilter,
)

MeasureName: TypeAlias = Literal["renyi", "zcdp", "gdp", "pure-dp", "steps"]
When: TypeAlias = Literal["fixed", "any time"]


@dataclass(frozen=True)
class Measure:
    """One measure. Callers use its methods; the fields from `cost` on are private.

    Attributes:
        name: the name in policies and records.
        kind: the name of the guarantee.
        unit: the name of the unit of a budget.
        mechanisms: the kinds of step that `charge_units` can charge.
        cost: units of a step, from a mechanism and norms (and orders).
        rule: the filter, from (orders and) budgets in units.
        largest: budgets in `unit`, from epsilon and delta (and orders).
        implied: epsilon, from (orders and) amounts in `unit`, and delta.
        table_costs: the costs in a cost table of the kinds whose charges differ between machines.
        per_order: whether there is one budget, and one column of state, per Rényi order.
        power: the power of `unit` in which budgets and costs are counted: 2 for mu, otherwise 1.
        exact_risk: the risk of an attack, from an amount in `unit` and a false-positive rate. None
            if it follows from the curve of epsilons.
        shape: the shape of the steps that are counted; None if costs follow norms.
        has_delta: whether the epsilon of a budget depends on delta.
    """

    name: MeasureName
    kind: str
    unit: str
    mechanisms: tuple[type[Mechanism], ...]
    cost: Callable[..., IntArray]
    rule: Callable[..., BudgetFilter]
    largest: Callable[..., FloatArray | float]
    implied: Callable[..., FloatArray | float]
    table_costs: Mapping[type[Mechanism], Callable[..., IntArray]] = field(
        default_factory=dict,
        hash=False,  # a mapping has no hash, and rows are keys of caches
    )
    per_order: bool = False
    power: int = 1
    exact_risk: Callable[[float, float], Risk] | None = None
    shape: StepShape | None = None
    has_delta: bool = True

    @property
    def parts(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """The parts of a budget to which a spend is rounded up for an epsilon at any time.

        Rising to 1, each with its share of delta; the shares are public and add up to 1. Empty if
        a spend is not rounded up.
        """
        return _PARTS if self.has_delta and not self.per_order else ()

    def covers(self, mechanism: Mechanism) -> bool:
        """Return whether `charge_units` can charge such a step."""
        if self.shape is not None:
            return self.shape.covers(mechanism)
        return isinstance(mechanism, self.mechanisms)

    @property
    def can_clip(self) -> bool:
        """True if a smaller norm of a Gaussian step costs less, so that a filter can grant one."""
        return self.shape is None and Gaussian in self.mechanisms

    def covers_by_table(self, mechanism: Mechanism) -> bool:
        """Return whether `cost_table` can charge such a step; it can charge all covered steps."""
        return self.covers(simplified(mechanism)) or self.needs_table(mechanism)

    def needs_table(self, mechanism: Mechanism) -> bool:
        """Return whether charges differ between machines, so that a log must hold them."""
        return type(simplified(mechanism)) in self.table_costs

    def charge_units(
        self, mechanism: Mechanism, norms: npt.ArrayLike, orders: npt.ArrayLike | None = None
    ) -> IntArray:
        """Return the charge of each user in units of the measure (`accounting.exact.units`).

        - zcdp: ceil(c^2 / (2 s^2) 2**44). Pure DP or Gaussian steps with an (epsilon, delta) budget
          are charged here too (Feldman and Zrnic Thm 4.9).
        - gdp: ceil(c^2 / s^2 2**44). `Gaussian` only.
        - pure-dp: ceil(c / scale 2**44). `Laplace` and `PureDP` only.
        - renyi: ceil(a ceil(c^2 / (2 s^2) 2**44)) at each order a; for `Laplace` and `PureDP` the
          least of this and ceil(c / scale 2**44). For `PoissonGaussian` and `PoissonRecords`, at
          rates below 1, `renyi_cost` in units, rounded up.
        - steps: one step, or nothing for norm 0 (`StepShape.units`).

        Args:
            mechanism: the step, which defines what the norms measure.
            norms: shape (n,), finite, >= 0.
            orders: shape (k,), for renyi only.

        Returns:
            Shape (n,), or (n, k) for renyi. Charges saturate at `MAX_COST_UNITS`, which no budget
            admits.
        """
        return self.cost(mechanism, norms, *self._checked(orders))

    def cost_table(
        self,
        mechanism: Mechanism,
        clip_norm: float,
        levels: int,
        orders: npt.ArrayLike | None = None,
    ) -> IntArray:
        """Return the charge of one step at every level of a norm grid, in units.

        Level l is charged as the norm l clip_norm / levels, rounded up to float64
        (`accounting.costs.norm_levels`): `charge_units` of that norm, or the charge of the level
        below if rounding makes that larger. So the table is 0 at level 0 and never falls. renyi
        charges `Laplace` and `PureDP` their exact divergence here, which is less than
        `charge_units`. Unlike `charge_units`, gdp accepts `Laplace` and `PureDP`
        (`accounting.costs.pure`), and every measure that accepts `Gaussian` accepts
        `PoissonGaussian` with sampling rate 1.

        Args:
            mechanism: the step, which defines what the norms measure.
            clip_norm: the norm of the highest level, finite, > 0.
            levels: L, 1 to 255.
            orders: shape (k,), for renyi only.

        Returns:
            int64, shape (L + 1,), or (L + 1, k) for renyi, saturating at `MAX_COST_UNITS`.
        """
        count = whole_number("levels", levels, 1, MAX_LEVELS)
        norms, step = grid_norms(clip_norm, count), simplified(mechanism)
        cost = self.table_costs.get(type(step), self.cost)
        units = cost(step, norms, *self._checked(orders))
        # Charges are rounded up, so raising one to that of the level below is sound.
        return np.asarray(np.maximum.accumulate(units, axis=0))

    def filter_of(
        self, budgets: Sequence[int], orders: npt.ArrayLike | None = None
    ) -> BudgetFilter:
        """Return the filter with these budgets.

        Args:
            budgets: whole units: one, or one per order.
            orders: shape (k,), given if there is one budget per order.
        """
        checked = self._checked(orders)
        if self.per_order:
            return self.rule(*checked, budgets)
        units = whole_array("budgets", budgets)
        if units.shape != (1,):
            raise InvalidInput("budgets", budgets, f"one budget for the measure {self.name}")
        return self.rule(int(units[0]))

    def budgets_for(
        self, epsilon: float, delta: float, orders: npt.ArrayLike | None = None
    ) -> FloatArray:
        """Return the largest budgets that imply (epsilon, delta), rounded down.

        Args:
            epsilon: finite, >= 0.
            delta: strictly between 0 and 1.
            orders: shape (k,), given if there is one budget per order.

        Returns:
            In `unit`, shape (1,), or (k,): each implies (epsilon, delta) by itself.
        """
        return np.atleast_1d(self.largest(epsilon, delta, *self._checked(orders)))

    def epsilon(
        self,
        amounts: npt.ArrayLike,
        delta: float,
        orders: npt.ArrayLike | None = None,
        *,
        when: When = "fixed",
        budget: int | None = None,
        any_order: bool = False,
    ) -> FloatArray:
        """Return the epsilon that amounts imply at delta, rounded up.

        "fixed": the amounts are fixed in advance, as a budget is, or those of a fixed schedule.

        "any time": the amounts are what each user has spent so far, and the epsilon holds at every
        stopping time of the outputs. With L the privacy loss of the outputs released up to such a
        time, in either direction, E[(1 - exp(epsilon - L))_+] is at most delta (proofs:
        docs/research/theorems.tex). By measure:

        - one Rényi order: the running sum at delta, with nothing added;
        - k Rényi orders: the running sums at delta / k;
        - zcdp, gdp, steps: the spend, rounded up to one of 11 fixed parts of the budget: the whole
          budget at 4/5 of delta; six to one eighths, 1/16, 1/32, 1/64 and 1/128 at 1/50 of delta
          each. A larger part with a smaller epsilon counts instead;
        - pure-dp: the running sum, which bounds the loss on every path.

        These epsilons may exceed the budget's at the same delta. The budget's holds as well, and is
        a separate statement: the lesser of the two holds only at 2 delta.

        Args:
            amounts: numbers >= 0 in `unit`, rounded up; shape (k,), or (n, k) for n users; k is 1,
                or the number of orders.
            delta: strictly between 0 and 1.
            orders: shape (k,), given if there is one amount per order. For "any time", fixed before
                the first charge; one order alone may be the user's own.
            when: "fixed" or "any time".
            budget: the user's, in units; for "any time" in the measures that round a spend up.
            any_order: whether only one of the amounts holds, at an unknown order; otherwise all do.
                Then the largest epsilon over the orders is returned instead of the least.

        Returns:
            Nats, shape () or (n,).

        Raises:
            InvalidInput: for other arguments, or a spend above the budget.
        """
        checked, rows = self._checked(orders), np.atleast_1d(nonnegative_array("amounts", amounts))
        count = renyi_orders("orders", orders).size if orders is not None else 1
        if rows.ndim > 2 or rows.shape[-1] != count:
            raise InvalidInput("amounts", rows.shape, f"({count},) or (n, {count})")
        if choice("when", when, get_args(When)) == "any time":
            return self._any_time_epsilon(rows, delta, checked, budget)
        if not checked:
            return np.asarray(self.implied(rows[..., 0], delta))
        if any_order:
            each = [
                np.asarray(self.implied([order], rows[..., [column]], delta))
                for column, order in enumerate(np.asarray(orders).tolist())
            ]
            return np.asarray(np.max(each, axis=0))
        return np.asarray(self.implied(*checked, rows, delta))

    def risk(
        self,
        amounts: npt.ArrayLike,
        false_positive_rate: float,
        orders: npt.ArrayLike | None = None,
        *,
        any_order: bool = False,
    ) -> Risk:
        """Return the risk of a membership attack that amounts allow, if they are fixed in advance.

        It is a statement about a budget, or a fixed schedule, as `epsilon` is. For gdp it is exact
        but for rounding. Other measures convert their curve of (epsilon, delta) at some points.

        Args:
            amounts, orders, any_order: as for `epsilon`.
            false_positive_rate: the attack's rate, strictly between 0 and 1.
        """
        if self.exact_risk is not None:
            self.epsilon(amounts, 0.5, orders)  # checks the arguments
            return self.exact_risk(float(np.asarray(amounts).item()), false_positive_rate)
        deltas = curve_deltas(false_positive_rate)
        epsilons = [
            self.epsilon(amounts, delta, orders, any_order=any_order) for delta in deltas.tolist()
        ]
        return curve_risk(epsilons, deltas, false_positive_rate)

    def gaussian_rho(self, budget: int) -> float | None:
        """Return the rho that Gaussian steps within a budget add up to at most, rounded down.

        A Gaussian step with noise s has rho c^2 / (2 s^2) for a user with norm c. So this is the
        rho from which `noise_for_norm_budget` computes the noise.

        Args:
            budget: a whole number of units.

        Returns:
            In nats. None if there is one budget per order, or if the measure does not charge the
            norms of Gaussian steps.
        """
        if self.per_order or not self.can_clip:
            return None
        of_one_half = float(from_units(self.charge_units(Gaussian(1.0), [1.0]))[0])
        return float(from_units_down(budget)) / of_one_half / 2.0

    def stated(self, units: npt.ArrayLike) -> FloatArray:
        """Return a spend, or a bound on it, in `unit`, rounded up; of the same shape.

        Args:
            units: int64, 0 to `MAX_COST_UNITS`.
        """
        counted = from_units(units)
        if self.power == 1:
            return counted
        return np.where(counted > 0.0, np.nextafter(np.sqrt(counted), np.inf), 0.0)

    def _any_time_epsilon(
        self,
        rows: FloatArray,
        delta: float,
        orders: tuple[npt.ArrayLike, ...],
        budget: int | None,
    ) -> FloatArray:
        if self.per_order:
            share = _share(delta, Fraction(1, rows.shape[-1]))
            return np.asarray(self.implied(*orders, rows, share))
        amounts = rows[..., 0]
        if not self.parts:
            return np.asarray(self.implied(amounts, delta))
        if budget is None:
            raise InvalidInput("budget", budget, f"given for the measure {self.name}")
        whole = whole_number("budget", budget, 0, MAX_BUDGET_UNITS)
        ends = self.stated([math.ceil(whole * part) for part, _ in self.parts])
        part = np.searchsorted(ends, amounts)
        if part.size and int(part.max()) == len(ends):
            raise InvalidInput("amounts", float(amounts.max()), f"at most the budget, {ends[-1]}")
        shares = np.array([_share(delta, share) for _, share in self.parts])
        epsilons = np.empty(len(ends))
        for share in np.unique(shares).tolist():
            alike = shares == share
            epsilons[alike] = self.implied(ends[alike], share)
        # The stop at a larger part covers smaller spends too, at no further delta.
        epsilons = np.minimum.accumulate(epsilons[::-1])[::-1]
        return np.where(amounts > 0.0, epsilons[part], 0.0)

    def _checked(self, orders: npt.ArrayLike | None) -> tuple[npt.ArrayLike, ...]:
        """Return the arguments of the row's functions for the orders: one, or none."""
        if (orders is not None) != self.per_order:
            raise InvalidInput("orders", orders, "given for the measure renyi only")
        return () if orders is None else (orders,)


def steps_measure(shape: StepShape) -> Measure:
    """Return the measure that counts steps of a public shape.

    A budget of N steps guarantees what N steps of this shape do: `Measure.budgets_for` returns the
    largest N whose certified loss distribution is (epsilon, delta)-DP, and `Measure.epsilon` the
    upper end of that certified interval.
    """
    if not isinstance(shape, StepShape):
        raise InvalidInput("shape", shape, "a StepShape")
    return _steps_measure(shape)


@lru_cache(maxsize=256)
def _steps_measure(shape: StepShape) -> Measure:
    return Measure(
        name="steps",
        kind="number of steps of a public shape",
        unit="steps",
        mechanisms=(Gaussian, PoissonGaussian),
        cost=shape.units,
        rule=partial(StepsFilter.from_units, shape),
        largest=partial(_steps_budget, shape),
        implied=partial(_steps_epsilon, shape),
        shape=shape,
    )


def steps_noise_multiplier(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """Return a noise multiplier at which (epsilon, delta) allows this many steps.

    It is at most a relative 1e-3 above the least one that the loss distributions certify, and
    the measure of the shape (sampling_rate, result) has a budget of at least `steps`.

    Args:
        epsilon: finite, >= 0.
        delta: strictly between 0 and 1.
        sampling_rate: the rate of each step, in (0, 1].
        steps: 1 to 131072.
    """
    from accounting.reports.calibration import noise_for_epsilon

    count = whole_number("steps", steps, 1, MAX_BUDGET_UNITS // ONE_STEP)
    noise = noise_for_epsilon(epsilon, delta, count, sampling_rate)
    for _ in range(10):
        shape = StepShape(sampling_rate, noise)
        if _steps_epsilon(shape, float(count), delta) <= epsilon:
            return noise
        noise *= 1.0 + 1e-4
    raise InvalidInput("epsilon", epsilon, "an epsilon that loss distributions can confirm")


def _steps_budget(shape: StepShape, epsilon: float, delta: float) -> float:
    """Return the largest number of steps that implies (epsilon, delta)."""
    # Import late: reports are slow to import, and no other measure needs them.
    from accounting.reports.calibration import steps_for_epsilon

    most = MAX_BUDGET_UNITS // ONE_STEP
    found = steps_for_epsilon(epsilon, delta, shape.certified, most)
    if found == 0:
        one = float(_steps_epsilon(shape, 1.0, delta))
        allowed = f"at least {one:.6g}, the epsilon of one step at delta {delta}: add noise"
        raise InvalidInput("epsilon", epsilon, allowed)
    return float(found)


def _steps_epsilon(shape: StepShape, steps: npt.ArrayLike, delta: float) -> FloatArray:
    """Return the epsilon of numbers of steps, each rounded up to a whole one; of the same shape."""
    from accounting.reports.calibration import epsilon_of_steps

    amounts = np.asarray(steps, dtype=np.float64)
    level = probability("delta", delta)
    whole = np.ceil(amounts)
    counted = whole <= MAX_BUDGET_UNITS // ONE_STEP  # above any budget, nothing is guaranteed
    counts, at = np.unique(np.where(counted, whole, 0.0).astype(np.int64), return_inverse=True)
    epsilons = epsilon_of_steps(shape.certified, counts, level)[at].reshape(amounts.shape)
    return np.where(counted, epsilons, np.inf)


def _pure_budget(epsilon: float, delta: float) -> float:
    """Return epsilon: a pure DP budget implies itself at every delta."""
    probability("delta", delta)
    return nonnegative_finite("epsilon", epsilon)


def _pure_epsilon(spent: FloatArray, delta: float) -> FloatArray:
    """Return the spend, which is an epsilon at every delta."""
    probability("delta", delta)
    return spent


def _share(delta: float, share: Fraction) -> float:
    """Return a share of delta, rounded down."""
    part = float_toward(Fraction(probability("delta", delta)) * share, DOWN)
    if part == 0.0:
        raise InvalidInput("delta", delta, f"large enough for a share of {share}")
    return part


# Eighths, the default odometer ticks, and halves of the first one: most users spend little. The
# epsilon that is stated at the end of a budget gets most of delta. With so much it is below that of
# 7/8 with a small share, so 7/8 is no part of its own.
_PARTS: Final = (
    *((Fraction(1, 2**power), Fraction(1, 50)) for power in range(7, 3, -1)),
    *((Fraction(eighths, 8), Fraction(1, 50)) for eighths in range(1, 7)),
    (Fraction(1), Fraction(4, 5)),
)
_ROWS: Final = (
    Measure(
        name="renyi",
        kind="Rényi divergence",
        unit="nats per order",
        mechanisms=(*UNSAMPLED, PoissonGaussian, PoissonRecords),
        cost=renyi_units,
        rule=RenyiFilter.from_units,
        largest=renyi_budgets,
        implied=renyi_to_epsilon,
        table_costs=dict.fromkeys(
            (PoissonGaussian, PoissonRecords, Laplace, PureDP), renyi_table_units
        ),
        per_order=True,
    ),
    Measure(
        name="zcdp",
        kind="zero-concentrated DP",
        unit="rho",
        mechanisms=UNSAMPLED,
        cost=ZCDP.units,
        rule=ZcdpFilter.from_units,
        largest=zcdp_budget,
        implied=zcdp_to_epsilon,
    ),
    Measure(
        name="gdp",
        kind="Gaussian DP",
        unit="mu",
        mechanisms=(Gaussian,),
        cost=GDP.units,
        rule=GdpFilter.from_units,
        largest=gdp_budget,
        implied=gdp_to_epsilon,
        table_costs=dict.fromkeys((Laplace, PureDP), gdp_units_of_pure),
        power=2,
        exact_risk=gdp_risk,
    ),
    Measure(
        name="pure-dp",
        kind="pure DP",
        unit="epsilon",
        mechanisms=(Laplace, PureDP),
        cost=PURE.units,
        rule=PureDPFilter.from_units,
        largest=_pure_budget,
        implied=_pure_epsilon,
        has_delta=False,
    ),
)
MEASURES: Final[Mapping[MeasureName, Measure]] = MappingProxyType({row.name: row for row in _ROWS})
