"""Budget-aware clipping by a filter, with what it charges."""

import numpy as np

from accounting import BudgetFilter, Mechanism


def grant_units(
    rule: BudgetFilter, state: np.ndarray, mechanism: Mechanism, norms: object
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (new state, granted norms, charges in units)."""
    granted = rule.largest_norms(state, mechanism, norms)
    charged = rule.charge_granted(state, mechanism, norms, granted)
    return state + charged, granted, charged
