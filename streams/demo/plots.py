"""The figures of the demos, as PNG files. Titles say what was found, in this very run."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from streams.demo.errors import demo_extra
from streams.demo.monitoring import MonitoringResult
from streams.demo.training import TrainingResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE: Final = "#1f6f8b"
_ORANGE: Final = "#d9772b"
_GREY: Final = "#8a9099"
_INK: Final = "#23282e"
_DOTS_PER_INCH: Final = 120
_BINS: Final = 20
_WEEK: Final = 7


def plot_training(result: TrainingResult, folder: Path) -> list[Path]:
    """Accuracy and active users by step, and what users have spent."""
    name = result.images.name.lower()
    return [
        _save(_active_users(result), folder / f"{name}-active-users.png"),
        _save(
            _spent_budgets(
                result.trace.spent / result.settings.rho,
                f"users ({result.images.name} images)",
                f"of zCDP budget rho = {result.settings.rho:.4f}, after "
                f"{result.settings.steps} steps",
                len(result.trace.spent) - int(result.trace.active[-1]),
            ),
            folder / f"{name}-spent-budget.png",
        ),
    ]


def plot_monitoring(result: MonitoringResult, folder: Path) -> list[Path]:
    """The daily curve with the active customers, and what customers have spent."""
    return [
        _save(_daily_buyers(result), folder / "cdnow-daily-buyers.png"),
        _save(
            _spent_budgets(
                result.spent / result.settings.rho,
                "customers",
                f"of zCDP budget rho = {result.settings.rho:.4f}, after "
                f"{len(result.answers)} daily answers",
                result.purchases.customers - int(result.active[-1]),
            ),
            folder / "cdnow-spent-budget.png",
        ),
    ]


def _active_users(result: TrainingResult) -> Figure:
    trace, steps = result.trace, np.arange(1, result.settings.steps + 1)
    users, left = len(trace.spent), int(trace.active[-1])
    figure = _figure(8.0, 6.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1])
    _style(above)
    _style(below)
    _title(
        figure,
        f"Worst-case accounting stops at step {result.k0}; "
        f"{left / users:.0%} of the users go on past step {len(steps)}",
        f"{result.images.name}, {users:,} users, the same guarantee for each: "
        f"epsilon = {result.settings.epsilon:g}, delta = {result.settings.delta:g}",
    )
    above.plot(steps, 100 * trace.accuracy, color=_BLUE, linewidth=1.6)
    for step, value, words, aside in (
        (result.k0, result.accuracy_worst_case, "worst case", (8, -16)),
        (len(steps), result.accuracy, "individual", (-4, -18)),
    ):
        colour = _ORANGE if words == "worst case" else _BLUE
        above.plot(step, 100 * value, "o", color=colour, clip_on=False, zorder=3)
        above.annotate(
            f"{words}: {value:.1%}",
            (step, 100 * value),
            xytext=aside,
            textcoords="offset points",
            horizontalalignment="left" if words == "worst case" else "right",
            color=_INK,
        )
    lowest = float(100 * np.quantile(trace.accuracy, 0.03))
    above.set_ylim(max(0.0, lowest - 4), min(100.0, float(100 * trace.accuracy.max()) + 3))
    above.set_ylabel("accuracy on test images (%)")
    below.plot(steps, trace.active, color=_BLUE, linewidth=1.6)
    below.fill_between(steps, trace.active, color=_BLUE, alpha=0.12, linewidth=0)
    below.set_ylim(0, 1.12 * users)
    below.set_ylabel("users with budget left")
    below.set_xlabel("training step")
    below.set_xlim(1, len(steps))
    below.yaxis.set_major_formatter("{x:,.0f}")
    _mark(above, result.k0)
    _mark(below, result.k0, f"k0 = {result.k0}")
    return figure


def _daily_buyers(result: MonitoringResult) -> Figure:
    days = len(result.answers)
    dates = [result.purchases.first_day + timedelta(day) for day in range(days)]
    when = np.array(dates, dtype="datetime64[D]")
    figure = _figure(9.0, 7.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1])
    _style(above)
    _style(below)
    _title(
        figure,
        f"{days} days answered under one budget; worst-case accounting stops after {result.k0}",
        f"CDNOW, {result.purchases.customers:,} customers: epsilon = "
        f"{result.settings.epsilon:g}, delta = {result.settings.delta:g}; mean error "
        f"{result.mean_error:.1f} a day; {result.mean_missing:.1f} buyers a day not counted",
    )
    above.plot(when, result.answers, ".", color=_BLUE, alpha=0.35, markersize=4, label="answer")
    above.plot(when, result.buyers, color=_GREY, linewidth=0.7, label="truth")
    week = when[_WEEK - 1 :]
    above.plot(
        week,
        _weekly_mean(result.buyers),
        color=_INK,
        linewidth=1.3,
        linestyle="--",
        label="truth, mean of the last 7 days",
    )
    above.plot(
        week,
        _weekly_mean(result.answers),
        color=_BLUE,
        linewidth=1.8,
        label="answers, mean of the last 7 days",
    )
    above.legend(frameon=False, loc="upper right")
    above.set_ylabel("customers who bought, per day")
    above.set_ylim(bottom=min(0.0, float(result.answers.min())))
    below.plot(when, result.active, color=_BLUE, linewidth=1.6)
    lost = result.purchases.customers - int(result.active[-1])
    below.set_ylabel("customers with\nbudget left")
    room = max(lost, 1)
    below.set_ylim(result.active[-1] - 0.25 * room, result.purchases.customers + 0.35 * room)
    below.annotate(
        f"{lost:,} of {result.purchases.customers:,} have been counted on "
        f"{result.settings.norm_budget} days and count no more",
        (0.06, 0.1),
        xycoords="axes fraction",
        color=_INK,
    )
    below.yaxis.set_major_formatter("{x:,.0f}")
    below.set_xlim(when[0], when[-1])
    _mark(above, when[min(result.k0, days) - 1])
    _mark(below, when[min(result.k0, days) - 1], f"k0 = {result.k0} days")
    return figure


def _spent_budgets(share: NDArray[np.float64], users: str, conditions: str, ran_out: int) -> Figure:
    """How many users spent which share of their budget, (n,)."""
    figure = _figure(8.0, 4.6)
    axes = figure.subplots()
    _style(axes)
    _title(
        figure,
        f"Half of the {users} spent at most {np.median(share):.0%} of their budget",
        f"{len(share):,} users; share {conditions}",
    )
    edges = np.linspace(0.0, 1.0, _BINS + 1)
    # A hair wider on the right: whole shares of the budget belong to the bar that they end.
    counts = np.histogram(share, edges + 1e-6 * (edges > 0))[0]
    colours = [_BLUE] * (_BINS - 1) + [_ORANGE]
    axes.bar(100 * edges[:-1], counts, 100 / _BINS, align="edge", color=colours, edgecolor="white")
    axes.annotate(
        f"{counts[-1]:,} in the last {100 / _BINS:g} %; {ran_out:,} ran out",
        (0.985, 0.95),
        xycoords="axes fraction",
        horizontalalignment="right",
        color=_ORANGE,
    )
    axes.set_xlabel("spent share of the budget (%)")
    axes.set_ylabel(users)
    axes.set_xlim(0, 100)
    axes.margins(y=0.15)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    return figure


def _weekly_mean(values: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.convolve(values, np.full(_WEEK, 1.0 / _WEEK), mode="valid")


def _figure(width: float, height: float) -> Figure:
    with demo_extra():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _title(figure: Figure, finding: str, conditions: str) -> None:
    figure.suptitle(finding, x=0.01, horizontalalignment="left", fontsize=13, color=_INK)
    figure.axes[0].set_title(conditions, loc="left", fontsize=10, color=_GREY)


def _style(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GREY)
    axes.tick_params(colors=_INK)
    axes.grid(axis="y", color="#e4e7ea", linewidth=0.8)
    axes.set_axisbelow(True)


def _mark(axes: Axes, place: float | np.datetime64, words: str = "") -> None:
    axes.axvline(place, color=_ORANGE, linewidth=1.2, linestyle="--")  # type: ignore[arg-type]
    if words:
        axes.annotate(
            words,
            (place, 0.97),
            xycoords=("data", "axes fraction"),
            xytext=(5, 0),
            textcoords="offset points",
            verticalalignment="top",
            color=_ORANGE,
        )


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DOTS_PER_INCH)
    return path
