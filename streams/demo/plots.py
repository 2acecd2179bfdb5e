"""Plot the answers of the demo as an SVG file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from streams.demo.purchases import Purchases
from streams.demo.revenue_plans import DELTA, EPSILON, Accounting, TrainingPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GREY: Final = "#8a9099"
_INK: Final = "#23282e"
_COLOURS: Final[Mapping[Accounting, str]] = {
    "worst case": _GREY,
    "contribution bounding": "#d9772b",
    "whole vector": "#7a4d9f",
    "individual": "#1f6f8b",
}


@dataclass(frozen=True, eq=False)
class DailyAnswers:
    """The answers under one accounting.

    Attributes:
        plan: the accounting and its parameters.
        values: (days,), the answers with the noise of the first seed.
        errors: the root mean square error for each noise seed.
    """

    plan: TrainingPlan
    values: NDArray[np.float64]
    errors: list[float]


def plot_revenue(
    purchases: Purchases, answers: Mapping[Accounting, DailyAnswers], gain: str, path: Path
) -> Path:
    """Plot the daily answers beside the truth for each accounting, and their errors as bars."""
    from matplotlib.figure import Figure

    truth = purchases.totals
    when = np.datetime64(purchases.first_day) + np.arange(purchases.days)
    figure = Figure(figsize=(10.0, 9.4), layout="constrained", facecolor="white")
    grid = figure.add_gridspec(len(answers), 2, width_ratios=[3.4, 1])
    bars = figure.add_subplot(grid[:, 1])
    first: Axes | None = None
    for row, (accounting, found) in enumerate(answers.items()):
        colour = _COLOURS[accounting]
        axes = figure.add_subplot(grid[row, 0], sharex=first, sharey=first)
        first = first or axes
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_GREY)
        axes.grid(axis="y", color="#e4e7ea", linewidth=0.8)
        axes.plot(when, found.values, ".", color=colour, alpha=0.6, markersize=5)
        axes.plot(when, truth, color=_INK, linewidth=0.8)
        axes.set_title(accounting, loc="left", color=colour, fontweight="bold")
        axes.yaxis.set_major_formatter("${x:,.0f}")
        axes.label_outer()
        error = float(np.mean(found.errors))
        bars.barh(-row, error, height=0.22, color=colour)
        text = f"\\${error:,.0f}"
        if len(found.errors) > 1:
            text += f" ± {np.std(found.errors, ddof=1) / len(found.errors) ** 0.5:,.0f}"
        bars.text(0.0, -row + 0.15, text, color=colour, fontweight="bold", fontsize=12)
    assert first is not None
    lowest = np.quantile(answers["worst case"].values, 0.002)
    first.set_ylim(min(0.0, float(lowest)), 1.05 * float(truth.max()))
    first.set_xlim(when[0], when[-1])
    first.legend(["private answer", "true revenue"], frameon=False, loc="upper right", ncols=2)
    bars.set_title("typical error (RMSE)", loc="left", color=_INK)
    bars.set_ylim(0.5 - len(answers), 0.5)
    bars.set_axis_off()
    title = f"Revenue per day of {purchases.name}. With individual accounting:\n{gain}"
    figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=14, color=_INK)
    conditions = (
        f"{purchases.users:,} customers, {purchases.days} days. In every row, each customer has "
        f"epsilon {EPSILON:g}, delta {DELTA:g} for all answers together.\n"
        "Every row has the cap and the number of days with the least error."
    )
    figure.supxlabel(conditions, x=0.01, horizontalalignment="left", fontsize=10, color=_GREY)
    figure.savefig(path, metadata={"Date": None})
    return path
