"""Optimal stopping of equal steps: the largest delta that a stopping rule can reach."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.signal import fftconvolve
from scipy.special import ndtr

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
    return _reached(epsilons, grid, step, v / 2.0)


def reached_delta_sampled(
    epsilons: Sequence[float], rate: float, noise: float, *, is_added: bool
) -> float:
    """Return the same for Poisson-sampled Gaussian steps.

    Losses are rounded down to a grid, so this is at most what a rule reaches.

    Args:
        epsilons: shown after each step.
        rate: the sampling rate.
        noise: the noise multiplier.
        is_added: the direction: the outputs are those with the user, instead of those without.
    """
    cell, half, reach = 0.001, 8_000, 8_000
    outputs = np.linspace(-14.0 * noise, 14.0 * noise, 400_001)
    without, with_user = (np.diff(ndtr((outputs - mean) / noise)) for mean in (0.0, 1.0))
    middle = (outputs[1:] + outputs[:-1]) / 2.0
    loss = np.logaddexp(np.log1p(-rate), math.log(rate) + (2.0 * middle - 1.0) / (2.0 * noise**2))
    masses = (1.0 - rate) * without + rate * with_user if is_added else without
    cells = np.floor((loss if is_added else -loss) / cell).astype(int)
    step = np.bincount(np.clip(cells, -reach, reach) + reach, masses, 2 * reach + 1)
    return _reached(epsilons, np.arange(-half, half + 1) * cell, step, 0.0)


def _reached(epsilons: Sequence[float], grid: np.ndarray, step: np.ndarray, drift: float) -> float:
    """Return the value of stopping at the middle of the grid of losses, by backward induction.

    Args:
        epsilons: shown after each step.
        grid: losses, which move by ``drift`` with each step.
        step: the probabilities of the cells by which a step moves the loss besides.
        drift: of each step.
    """
    value, reach = np.zeros_like(grid), len(step) // 2
    for number in range(len(epsilons), 0, -1):
        loss = grid + number * drift
        reward = np.maximum(-np.expm1(np.minimum(epsilons[number - 1] - loss, 0.0)), 0.0)
        value = np.maximum(reward, value)
        value = fftconvolve(np.pad(value, reach, mode="edge"), step[::-1], mode="valid")
    return float(value[len(grid) // 2])
