"""Find where a falling function of one number per user crosses zero, for all users at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from accounting.exact.validation import FloatArray

_STEPS = 30
_ACCURACY, _MARGIN = 1e-11, 0.01
# Values, mostly logarithms, are cut off where only their sign and order are wanted.
_CUT = 60.0


def falling_root(
    function: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return an interval around where a falling function crosses 0, shape (n,) each.

    The function is > 0 at its lower end and <= 0 at its upper end, unless these are the ends given.
    Three bisections, then false position that halves the value at an end that stays (Illinois) and
    keeps off the ends, so that both close in.
    """
    value_low, value_high = np.full_like(low, _CUT), np.full_like(high, -_CUT)
    stayed = np.zeros(low.shape)
    for step in range(_STEPS):
        share = value_low / (value_low - value_high) if step >= 3 else np.full(low.shape, 0.5)
        middle = low + (high - low) * np.clip(share, _MARGIN, 1.0 - _MARGIN)
        value = np.clip(function(middle), -_CUT, _CUT)
        # What has converged stays as it is, so that no user's result depends on the others.
        open_ = high - low > _ACCURACY * high
        rising, falling = open_ & (value > 0.0), open_ & (value <= 0.0)
        value_high = np.where(rising & (stayed > 0.0), 0.5 * value_high, value_high)
        value_low = np.where(falling & (stayed < 0.0), 0.5 * value_low, value_low)
        low, value_low = np.where(rising, middle, low), np.where(rising, value, value_low)
        high, value_high = np.where(falling, middle, high), np.where(falling, value, value_high)
        stayed = np.where(rising, 1.0, -1.0)
        if not open_.any():
            break
    return low, high
