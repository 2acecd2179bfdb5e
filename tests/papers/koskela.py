"""Koskela, Tobaben and Honkela: Gaussian DP against Renyi DP, and individual epsilons by PLD."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accounting import NormGrid, ReportAccountant, gdp_to_epsilon, renyi_to_epsilon, zcdp_to_epsilon
from tests.papers.norms import Training
from tests.papers.rows import BLUE, GREY, ORANGE, Row, figure, save

_NOISE_MULTIPLIER = 100.0
_DELTA = 1e-5
_STEPS = np.arange(1, 601)
_ORDERS = 1.0 + np.geomspace(1e-2, 1e3, 2000)
_HISTOGRAM_DELTA = 1e-6
_FIG4_STEPS = (200, 420, 1000, 2000)
_FIG5_EPSILONS = (0.5, 1.0, 2.0)
_MOST_STEPS = 4_000


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


def more_steps(out: Path) -> list[Row]:
    """Figs. 4 and 5: other numbers of steps, and the most steps within other epsilons."""
    steps = np.arange(1, _MOST_STEPS + 1)
    rho = steps / (2.0 * _NOISE_MULTIPLIER**2)
    by_renyi = renyi_to_epsilon(_ORDERS, rho[:, np.newaxis] * _ORDERS, _DELTA)
    by_gdp = gdp_to_epsilon(np.sqrt(2.0 * rho), _DELTA)
    drawing = figure(columns=2)
    fewer, most = drawing.subplots(1, 2)
    deltas = np.geomspace(1e-8, 1e-2, 40)
    for number in _FIG4_STEPS:
        one = rho[number - 1]
        renyi = [float(renyi_to_epsilon(_ORDERS, one * _ORDERS, delta)) for delta in deltas]
        gdp = [float(gdp_to_epsilon(np.sqrt(2.0 * one), delta)) for delta in deltas]
        fewer.plot(renyi, deltas, color=ORANGE)
        fewer.plot(gdp, deltas, color=BLUE)
    fewer.set(xlabel="ε", ylabel="δ", yscale="log", title=f"{_FIG4_STEPS} steps")
    for epsilon, color, name in ((by_renyi, ORANGE, "Rényi"), (by_gdp, BLUE, "Gaussian DP")):
        most.plot(epsilon, steps, color=color, label=name)
    most.set(xlabel=f"ε at δ = {_DELTA:g}", ylabel="most steps")
    save(drawing, out / "koskela-fig4-5.png")
    rows = [
        Row(
            "K Fig. 4",
            f"ε of {number} steps by Rényi DP, by Gaussian DP",
            "a plot",
            f"{by_renyi[number - 1]:.3f}, {by_gdp[number - 1]:.3f}",
        )
        for number in _FIG4_STEPS
    ]
    for limit in _FIG5_EPSILONS:
        renyi_steps, gdp_steps = (int(steps[e <= limit].max()) for e in (by_renyi, by_gdp))
        rows.append(
            Row(
                "K Fig. 5",
                f"steps for ε = {limit:g} by Rényi DP, by Gaussian DP",
                "a plot",
                f"{renyi_steps:,}, {gdp_steps:,} ({gdp_steps / renyi_steps - 1.0:.0%} more)",
            )
        )
    return rows


def individual_epsilons(training: Training, out: Path) -> list[Row]:
    """Fig. 1: one user's privacy curve, and histograms of epsilon."""
    grid = NormGrid(float(training.norms.max()))
    accountant = ReportAccountant(training.mechanism, grid)
    counts = grid.counts(training.norms[:1000])
    by_pld = accountant.epsilon(counts, _HISTOGRAM_DELTA, method="pld")
    by_renyi = accountant.epsilon(counts, _HISTOGRAM_DELTA, method="renyi")
    by_saddle_point = accountant.epsilon(counts, _HISTOGRAM_DELTA, method="saddlepoint")

    median_user = int(np.argsort(by_pld)[len(by_pld) // 2])
    deltas = np.geomspace(1e-10, 1e-1, 60)
    drawing = figure(columns=2)
    curve, histogram = drawing.subplots(1, 2)
    one = counts[median_user]
    exact = [float(accountant.epsilon(one, delta)) for delta in deltas]
    curve.plot(exact, deltas, color=BLUE, label="PLD")
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
