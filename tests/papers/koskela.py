"""Koskela, Tobaben and Honkela: Gaussian DP against Renyi DP, and individual epsilons by PLD."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accounting import NormGrid, ReportAccountant, gdp_to_epsilon, renyi_to_epsilon, zcdp_to_epsilon
from accounting.research import approximate_mu
from tests.papers.norms import Training
from tests.papers.rows import BLUE, GREY, ORANGE, Row, figure, save

_NOISE_MULTIPLIER = 100.0
_DELTA = 1e-5
_STEPS = np.arange(1, 601)
_ORDERS = 1.0 + np.geomspace(1e-2, 1e3, 2000)
_HISTOGRAM_DELTA = 1e-6


def gdp_against_renyi(out: Path) -> list[Row]:
    """App. C.4 and Fig. 3: private gradient descent with noise 100 and norms of 1."""
    rho = _STEPS / (2.0 * _NOISE_MULTIPLIER**2)
    renyi = renyi_to_epsilon(_ORDERS, rho[:, np.newaxis] * _ORDERS, _DELTA)
    gdp = gdp_to_epsilon(np.sqrt(2.0 * rho), _DELTA)
    simple = zcdp_to_epsilon(rho, _DELTA, simple=True)
    at_420 = renyi[_STEPS == 420][0]
    drawing = figure()
    axes = drawing.subplots()
    for epsilon, color, name in (
        (simple, GREY, "zCDP, simple"),
        (renyi, ORANGE, "Rényi"),
        (gdp, BLUE, "Gaussian DP"),
    ):
        axes.plot(_STEPS, epsilon, color=color, label=name)
    axes.set(xlabel="steps", ylabel=f"ε at δ = {_DELTA:g}", xlim=(0, 600), ylim=(0, None))
    save(drawing, out / "koskela-fig3.png")
    source = "K App. C.4, Fig. 3"
    return [
        Row(source, "ε of 420 steps by Rényi DP", "0.8156", f"{at_420:.4f}"),
        Row(source, "GDP steps for that ε", "495", _steps_within(gdp, at_420)),
        Row(source, "GDP steps for ε = 0.8", "478", _steps_within(gdp, 0.8)),
        Row(source, "Rényi steps for ε = 0.8", "405", _steps_within(renyi, 0.8)),
        Row(source, "simple zCDP steps for ε = 0.8", "268", _steps_within(simple, 0.8)),
    ]


def individual_epsilons(training: Training, out: Path) -> list[Row]:
    """Fig. 1: one user's privacy curve with its approximate mu, and histograms of epsilon."""
    grid = NormGrid(float(training.norms.max()))
    accountant = ReportAccountant(training.mechanism, grid)
    counts = grid.counts(training.norms[:1000])
    by_pld = accountant.epsilon(counts, _HISTOGRAM_DELTA, method="pld")
    by_renyi = accountant.epsilon(counts, _HISTOGRAM_DELTA, method="renyi")
    by_saddle_point = accountant.epsilon(counts, _HISTOGRAM_DELTA, method="saddlepoint")

    median_user = int(np.argsort(by_pld)[len(by_pld) // 2])
    mu = float(approximate_mu(accountant, counts[median_user], method="pld"))
    deltas = np.geomspace(1e-10, 1e-1, 60)
    drawing = figure(columns=2)
    curve, histogram = drawing.subplots(1, 2)
    one = counts[median_user]
    exact = [float(accountant.epsilon(one, delta)) for delta in deltas]
    curve.plot(exact, deltas, color=BLUE, label="PLD")
    gaussian = [gdp_to_epsilon(mu, delta) for delta in deltas]
    curve.plot(gaussian, deltas, "--", color=ORANGE, label=f"Gaussian DP, μ ≈ {mu:.2f}")
    curve.set(xlabel="ε", ylabel="δ", yscale="log", title="the median user")
    edges = np.linspace(0.0, float(by_renyi.max()), 50)
    histogram.hist(by_pld, edges, color=BLUE, alpha=0.7, label="PLD")
    histogram.hist(by_renyi, edges, color=ORANGE, alpha=0.6, label="Rényi")
    histogram.set(xlabel=f"ε at δ = {_HISTOGRAM_DELTA:g}", ylabel="users")
    save(drawing, out / "koskela-fig1.png")

    source = f"K Fig. 1 ({training.data})"
    width = by_pld.bounds.upper - by_pld.bounds.lower
    inside = np.mean((by_saddle_point >= by_pld.bounds.lower) & (by_pld <= by_renyi))
    quantiles = "/".join(f"{q:.3f}" for q in np.quantile(by_pld, [0.1, 0.5, 0.9]))
    renyi_quantiles = "/".join(f"{q:.3f}" for q in np.quantile(by_renyi, [0.1, 0.5, 0.9]))
    return [
        Row(source, "ε by PLD at quantiles 0.1/0.5/0.9 of 1,000 users", "a histogram", quantiles),
        Row(source, "the same by Rényi DP", "a histogram, larger", renyi_quantiles),
        Row(source, "widest interval of the PLD bounds", "", f"{width.max():.2g}"),
        Row(source, "users whose bounds by PLD, saddle point and Rényi agree", "", f"{inside:.1%}"),
    ]


def _steps_within(epsilon: np.ndarray, limit: float) -> str:
    return str(int(_STEPS[epsilon <= limit].max()))
