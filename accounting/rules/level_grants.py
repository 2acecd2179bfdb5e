"""Budget-aware clipping on a grid of norms (FZ Alg. 7): the highest level that can be paid for.

A step that is charged by levels (`accounting.costs.tariffs`) can be granted by levels alone: what a
user contributes is clipped to the norm of the level that was charged.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from accounting.costs.tariffs import LevelArray, checked_levels, checked_tariff
from accounting.exact.errors import InvalidInput
from accounting.exact.validation import IntArray
from accounting.rules.admission import checked_state
from accounting.rules.budget_filter import BudgetFilter


def grant_levels(
    rule: BudgetFilter, state: IntArray, tariff: IntArray, levels: npt.ArrayLike
) -> tuple[IntArray, LevelArray]:
    """Return (new_state, granted_levels): the highest level up to each that fits.

    What is charged is the tariff of the granted level, at every order, and fits the whole units of
    every budget; level 0 is free. What is left is kept: it may pay for a cheaper step.

    Args:
        rule: the filter.
        state: units, shape (n,) or (n, k).
        tariff: units of every level, shape (L + 1,) or (L + 1, k), see `checked_tariff`.
        levels: shape (n,), whole numbers from 0 to L.

    Raises:
        InvalidInput: for other arguments.
    """
    prices = checked_tariff(tariff)
    asked = checked_levels(levels, len(prices) - 1)
    spent = checked_state(rule.budget_units, state)
    if spent.shape != (*asked.shape, *prices.shape[1:]):
        raise InvalidInput("state", spent.shape, f"of shape {(*asked.shape, *prices.shape[1:])}")
    left = np.array(rule.budget_units) - spent
    columns = left.reshape(len(left), -1).T, prices.reshape(len(prices), -1).T
    granted = asked.astype(np.intp)
    for rest, column in zip(*columns, strict=True):
        # A tariff never falls: what fits is a row of levels from 0 on.
        np.minimum(granted, np.searchsorted(column, rest, side="right") - 1, out=granted)
    return spent + prices.take(granted, axis=0), granted.astype(np.uint8)
