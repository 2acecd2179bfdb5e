"""Asoodeh et al., saddle-point accountant: two curves of DP-SGD with sampling rate 0.01."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np

from accounting import NormGrid, PoissonGaussian, ReportAccountant
from accounting.reports import BoundedArray, Bounds
from bench.papers.rows import BLUE, GREEN, ORANGE, Row, figure, save

_SAMPLING_RATE = 0.01
_DELTA = 1e-5
_STEPS = np.unique(np.geomspace(10, 4000, 40).astype(np.int64))
_RATE_STEPS = (250, 1_000, 4_000, 16_000)
_EPSILONS = np.linspace(0.25, 6.0, 24)


def curves(out: Path) -> list[Row]:
    """Epsilon over steps with noise 0.65; delta over epsilon with noise 1 after 2,000 steps."""
    grid = NormGrid(1.0, levels=1)
    small, large = (
        ReportAccountant(PoissonGaussian(noise, _SAMPLING_RATE), grid) for noise in (0.65, 1.0)
    )
    drawing = figure(columns=2)
    over_steps, over_epsilon = drawing.subplots(1, 2)
    counts = _STEPS[:, np.newaxis]
    for method, color in (("renyi", ORANGE), ("saddlepoint", GREEN), ("pld", BLUE)):
        epsilon = small.epsilon(counts, _DELTA, method=method)
        _interval(over_steps, _STEPS, epsilon, color, method)
        delta = [large.delta(np.array([2000]), float(e), method=method) for e in _EPSILONS]
        bounds = BoundedArray(Bounds(*np.stack([d.bounds for d in delta], axis=1)))
        _interval(over_epsilon, _EPSILONS, bounds, color, method)
    over_steps.set(xlabel="steps", ylabel=f"ε at δ = {_DELTA:g}", title="noise 0.65", ylim=(0, 14))
    over_epsilon.set(
        xlabel="ε", ylabel="δ", title="noise 1, 2,000 steps", yscale="log", ylim=(1e-12, 1)
    )
    save(drawing, out / "saddle-point-curves.png")
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


def error_and_time() -> list[Row]:
    """Error analysis: the error of the saddle point as steps grow, and its running time.

    Epsilon grows with the steps such that delta stays 1e-5 by loss distributions, which are the
    truth here. A relative error of delta is then proportional to the absolute one of the slides.
    """
    accountant = ReportAccountant(PoissonGaussian(1.0, _SAMPLING_RATE), NormGrid(1.0, levels=1))
    rows = []
    for steps in _RATE_STEPS:
        one = np.array([steps])
        epsilon = float(accountant.epsilon(one, _DELTA, method="pld"))
        exact = accountant.delta(one, epsilon, method="pld").bounds
        accountant.delta(one, epsilon, method="saddlepoint")  # the first call also makes tables
        began = perf_counter()
        found = accountant.delta(one, epsilon, method="saddlepoint").bounds
        seconds = perf_counter() - began
        rows.append(
            Row(
                "SP, error analysis",
                f"noise 1, q = 0.01, {steps:,} steps, ε = {epsilon:.3f}: relative error of δ, "
                "bound of it, milliseconds",
                "error O(1/√n), time constant",
                f"{found.estimate / exact.estimate - 1.0:+.1e}, "
                f"{found.upper / found.estimate - 1.0:.2g}, {1e3 * seconds:.0f}",
            )
        )
    return rows


def _interval(axes, x: np.ndarray, values: BoundedArray, color: str, method: str) -> None:
    lower, estimate, upper = values.bounds
    style = "--" if method == "pld" else "-"  # else it would hide the saddle point below it
    axes.plot(x, upper if method == "renyi" else estimate, style, color=color, label=method)
    if method != "renyi":
        axes.fill_between(x, lower, upper, color=color, alpha=0.25)
