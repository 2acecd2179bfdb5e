"""Individual privacy accounting of dp-turnstile: pure functions of arrays, no I/O.

Units are nats; norms and noise are in the same units; neighbouring datasets differ by adding or
removing one user. Costs round up, budgets round down. `docs/research` in the repository has
the theorem that each function rests on, and its tests.

Functions raise `InvalidInput` for an argument outside what their docstring allows, and change
nothing then. Docstrings mention it only if the condition is more than a range.

The reports need scipy, so they are imported when one of their names is first used. Programs that
only filter, charge or count odometer ticks do not wait for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from accounting.conversions.gdp import gdp_budget, gdp_to_delta, gdp_to_epsilon
from accounting.conversions.renyi import (
    CandidateOrders,
    candidate_orders,
    renyi_budgets,
    renyi_to_delta,
    renyi_to_epsilon,
)
from accounting.conversions.risk import Risk, curve_risk, gdp_risk
from accounting.conversions.zcdp import zcdp_budget, zcdp_to_delta, zcdp_to_epsilon
from accounting.costs.banded import banded_step, banded_steps, square_root_column
from accounting.costs.costs import gdp_cost, renyi_cost, zcdp_cost
from accounting.costs.dp_events import mechanism_from
from accounting.costs.mechanisms import (
    Gaussian,
    Laplace,
    Mechanism,
    PoissonGaussian,
    PoissonRecords,
    PureDP,
)
from accounting.costs.norm_levels import MAX_LEVELS, checked_cost_table, grid_norms, levels_of
from accounting.costs.power_cost import noise_for_norm_budget
from accounting.costs.pure import pure_to_gdp
from accounting.costs.step_shape import StepShape
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.units import (
    MAX_BUDGET_UNITS,
    MAX_COST_UNITS,
    UNIT_BITS,
    budget_units,
    cost_units,
    from_units,
    from_units_down,
)
from accounting.filters.budget_filter import BudgetFilter
from accounting.filters.measure_filters import (
    GdpFilter,
    PureDPFilter,
    RenyiFilter,
    StepsFilter,
    ZcdpFilter,
)
from accounting.filters.per_user_order import best_order
from accounting.measures import (
    MEASURES,
    Measure,
    MeasureName,
    steps_measure,
    steps_noise_multiplier,
)
from accounting.release.clipping import round_to

if TYPE_CHECKING:
    from accounting.reports import Bounds, NormGrid, ReportAccountant
    from accounting.reports.calibration import noise_for_epsilon

__all__ = [
    "MAX_BUDGET_UNITS",
    "MAX_COST_UNITS",
    "MAX_LEVELS",
    "MEASURES",
    "UNIT_BITS",
    "Bounds",
    "BudgetFilter",
    "CandidateOrders",
    "Gaussian",
    "GdpFilter",
    "InvalidInput",
    "Laplace",
    "Measure",
    "MeasureName",
    "Mechanism",
    "NormGrid",
    "PoissonGaussian",
    "PoissonRecords",
    "PureDP",
    "PureDPFilter",
    "RenyiFilter",
    "ReportAccountant",
    "Risk",
    "StepShape",
    "StepsFilter",
    "ZcdpFilter",
    "banded_step",
    "banded_steps",
    "best_order",
    "budget_units",
    "candidate_orders",
    "checked_cost_table",
    "cost_units",
    "curve_risk",
    "from_units",
    "from_units_down",
    "gdp_budget",
    "gdp_cost",
    "gdp_risk",
    "gdp_to_delta",
    "gdp_to_epsilon",
    "grid_norms",
    "levels_of",
    "mechanism_from",
    "noise_for_epsilon",
    "noise_for_norm_budget",
    "pure_to_gdp",
    "renyi_budgets",
    "renyi_cost",
    "renyi_to_delta",
    "renyi_to_epsilon",
    "round_to",
    "square_root_column",
    "steps_measure",
    "steps_noise_multiplier",
    "zcdp_budget",
    "zcdp_cost",
    "zcdp_to_delta",
    "zcdp_to_epsilon",
]

_REPORTS = {
    "Bounds": "accounting.reports.bounds",
    "NormGrid": "accounting.reports.grid",
    "ReportAccountant": "accounting.reports.accountant",
    "noise_for_epsilon": "accounting.reports.calibration",
}


def __getattr__(name: str) -> object:
    if name not in _REPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_REPORTS[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
