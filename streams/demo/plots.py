"""Plot the answers of the demo as an SVG file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from streams.demo.demo_error import demo_extra
from streams.demo.means import with_error
from streams.demo.revenue import RevenueResult
from streams.demo.revenue_plans import DELTA, EPSILON

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE: Final = "#1f6f8b"
_ORANGE: Final = "#d9772b"
_PURPLE: Final = "#7a4d9f"
_GREY: Final = "#8a9099"
_INK: Final = "#23282e"
_COLOURS: Final = {
    "worst case": _GREY,
    "contribution bounding": _ORANGE,
    "whole vector": _PURPLE,
    "individual": _BLUE,
}


def plot_revenue(result: RevenueResult, folder: Path) -> Path:
    """Plot the daily answers beside the truth for each accounting, and their errors as bars."""
    purchases, truth = result.purchases, result.purchases.totals
    when = np.array(result.dates, dtype="datetime64[D]")
    figure = _figure(10.0, 9.4)
    grid = figure.add_gridspec(len(result.answers), 2, width_ratios=[3.4, 1])
    bars = figure.add_subplot(grid[:, 1])
    shared: Axes | None = None
    for row, (accounting, answers) in enumerate(result.answers.items()):
        colour = _COLOURS[accounting]
        axes = figure.add_subplot(grid[row, 0], sharex=shared, sharey=shared)
        shared = shared or axes
        _style(axes)
        axes.plot(when, answers.values, ".", color=colour, alpha=0.6, markersize=5)
        axes.plot(when, truth, color=_INK, linewidth=0.8)
        axes.set_title(accounting, loc="left", color=colour, fontweight="bold")
        axes.yaxis.set_major_formatter("${x:,.0f}")
        axes.label_outer()
        bars.barh(-row, np.mean(answers.errors), height=0.22, color=colour)
        text = "\\$" + with_error("{:,.0f}", answers.errors)
        bars.text(0.0, -row + 0.15, text, color=colour, fontweight="bold", fontsize=12)
    assert shared is not None
    lowest = np.quantile(result.answers["worst case"].values, 0.002)
    shared.set_ylim(min(0.0, float(lowest)), 1.05 * float(truth.max()))
    shared.set_xlim(when[0], when[-1])
    shared.legend(["private answer", "true revenue"], frameon=False, loc="upper right", ncols=2)
    bars.set_title("typical error (RMSE)", loc="left", color=_INK)
    bars.set_ylim(0.5 - len(result.answers), 0.5)
    bars.set_axis_off()
    _describe(
        figure,
        f"Revenue per day of {purchases.name}. With individual accounting:\n{result.gain}",
        f"{purchases.users:,} customers, {purchases.days} days. In every row, each customer has "
        f"epsilon {EPSILON:g}, delta {DELTA:g} for all answers together.\n"
        "Every row has the cap and the number of days with the least error.",
    )
    return _save(figure, folder / "revenue.svg")


def _describe(figure: Figure, title: str, conditions: str) -> None:
    figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=14, color=_INK)
    figure.supxlabel(conditions, x=0.01, horizontalalignment="left", fontsize=10, color=_GREY)


def _figure(width: float, height: float) -> Figure:
    with demo_extra():
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasSVG(figure)
    return figure


def _style(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GREY)
    axes.tick_params(colors=_INK)
    axes.grid(axis="y", color="#e4e7ea", linewidth=0.8)
    axes.set_axisbelow(True)


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    return path
