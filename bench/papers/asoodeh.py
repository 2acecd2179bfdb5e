"""Asoodeh et al., saddle-point accountant: DP-SGD with sampling rate 0.01."""

from __future__ import annotations

import numpy as np

from accounting import NormGrid, PoissonGaussian, ReportAccountant
from bench.papers.rows import Row

_SAMPLING_RATE = 0.01
_DELTA = 1e-5
_RATE_STEPS = (250, 1_000, 4_000, 16_000)


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


def errors() -> list[Row]:
    """Error analysis: the error of the saddle point as steps grow.

    Epsilon grows with the steps such that delta stays 1e-5 by loss distributions, which are the
    truth here. A relative error of delta is then proportional to the absolute one of the slides.
    """
    accountant = ReportAccountant(PoissonGaussian(1.0, _SAMPLING_RATE), NormGrid(1.0, levels=1))
    rows = []
    for steps in _RATE_STEPS:
        one = np.array([steps])
        epsilon = float(accountant.epsilon(one, _DELTA, method="pld"))
        exact = accountant.delta(one, epsilon, method="pld").bounds
        found = accountant.delta(one, epsilon, method="saddlepoint").bounds
        rows.append(
            Row(
                "SP, error analysis",
                f"noise 1, q = 0.01, {steps:,} steps, ε = {epsilon:.3f}: relative error of δ, "
                "bound of it",
                "error O(1/√n)",
                f"{found.estimate / exact.estimate - 1.0:+.1e}, "
                f"{found.upper / found.estimate - 1.0:.2g}",
            )
        )
    return rows
