"""Exact optimal stopping of Gaussian steps: the largest delta that a stopping rule can reach."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.signal import fftconvolve

_CELLS = 400  # to the root of the total mu squared
_REACH = 12.0  # in such roots, to either side of the mean loss
_TAIL = 9.0  # of one step, in its standard deviations


def reached_delta(epsilons: Sequence[float], mu_squared: float) -> float:
    """Return the largest E[(1 - exp(epsilon_T - L_T))_+] over all stopping rules T.

    The privacy loss L is a walk of independent steps, each normal with mean v / 2 and variance v,
    v = mu_squared / steps: what equal Gaussian steps lose. The rule sees L, and the epsilon that is
    shown after each step follows from the step's number. Backward induction on a grid; one step
    gives the exact delta of Gaussian DP to within 1e-4 of it.

    Args:
        epsilons: shown after each step.
        mu_squared: of all steps together.
    """
    v, cell = mu_squared / len(epsilons), math.sqrt(mu_squared) / _CELLS
    half = round(_REACH * _CELLS)
    # The mean of a step is a whole number of cells away: the grid moves with it.
    grid = np.arange(-half, half + 1) * cell
    reach = math.ceil(_TAIL * math.sqrt(v) / cell)
    step = np.exp(-((np.arange(-reach, reach + 1) * cell) ** 2) / (2.0 * v))
    step /= step.sum()
    value = np.zeros_like(grid)
    for number in range(len(epsilons), 0, -1):
        loss = grid + number * v / 2.0
        reward = np.maximum(-np.expm1(np.minimum(epsilons[number - 1] - loss, 0.0)), 0.0)
        value = np.maximum(reward, value)
        value = fftconvolve(np.pad(value, reach, mode="edge"), step, mode="valid")
    return float(value[half])
