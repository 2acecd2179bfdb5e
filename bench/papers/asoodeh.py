"""Asoodeh et al., saddle-point accountant: DP-SGD with sampling rate 0.01."""

from __future__ import annotations

import numpy as np

from accounting import NormGrid, PoissonGaussian, ReportAccountant
from bench.papers.rows import Row

_SAMPLING_RATE = 0.01
_DELTA = 1e-5


def published_epsilons() -> list[Row]:
    """Epsilon of DP-SGD by Rényi DP, loss distributions and the saddle point."""
    grid = NormGrid(1.0, levels=1)
    small, large = (
        ReportAccountant(PoissonGaussian(noise, _SAMPLING_RATE), grid) for noise in (0.65, 1.0)
    )
    rows = []
    for accountant, noise, steps, renyi, pld in (
        (large, 1.0, 1000, "2.10", "1.828"),
        (small, 0.65, 2000, "8.83", "7.751"),
    ):
        one = np.array([steps])
        what = f"ε, noise {noise:g}, q = 0.01, {steps} steps, δ = 1e-5"
        for method, published in (("renyi", renyi), ("pld", pld), ("saddlepoint", pld)):
            lower, estimate, upper = accountant.epsilon(one, _DELTA, method=method).bounds
            here = f"{upper:.3f}"
            if method != "renyi":
                here = f"{estimate:.4f} in [{lower:.4f}, {upper:.4f}]"
            rows.append(Row("SP, DP-SGD", f"{what}, {method}", published, here))
    return rows
