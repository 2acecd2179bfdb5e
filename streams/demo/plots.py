"""The figures of the demos, as PNG files. Titles say what was found, in this very run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from streams.demo.errors import demo_extra
from streams.demo.monitoring import MonitoringResult
from streams.demo.sampled import SampledResult
from streams.demo.training import TrainingResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_BLUE: Final = "#1f6f8b"
_ORANGE: Final = "#d9772b"
_GREY: Final = "#8a9099"
_INK: Final = "#23282e"
_DASHES: Final = (0, (4, 2))
_DOTS_PER_INCH: Final = 120
_BINS: Final = 20
_WEEK: Final = 7


def plot_training(results: Sequence[TrainingResult], folder: Path) -> list[Path]:
    """Accuracy of three accountings and active users by step; what users of the first spent."""
    first = results[0]
    name = first.images.name.lower()
    return [
        _save(_training(results), folder / f"{name}-training.png"),
        _save(
            _spent_budgets(
                first.trace.spent / first.settings.rho,
                f"users ({first.images.name} images)",
                f"of zCDP budget rho = {first.settings.rho:.4f}, after "
                f"{first.settings.steps} steps",
                len(first.trace.spent) - int(first.trace.active[-1]),
            ),
            folder / f"{name}-spent-budget.png",
        ),
    ]


def plot_sampled(by_clip_norm: Sequence[Sequence[SampledResult]], folder: Path) -> list[Path]:
    """Accuracy of the accountants with each clip norm; who takes part; what users spent."""
    name = by_clip_norm[0][0].images.name.lower()
    return [_save(_sampled(by_clip_norm), folder / f"{name}-dpsgd.png")]


def plot_monitoring(results: Sequence[MonitoringResult], folder: Path) -> list[Path]:
    """The daily answers beside those of the worst case, and what customers have spent."""
    first = results[0]
    return [
        _save(_daily_buyers(results), folder / "cdnow-daily-buyers.png"),
        _save(
            _spent_budgets(
                first.spent / first.settings.rho,
                "customers",
                f"of zCDP budget rho = {first.settings.rho:.4f}, after "
                f"{len(first.answers)} daily answers",
                first.purchases.customers - int(first.active[-1]),
            ),
            folder / "cdnow-spent-budget.png",
        ),
    ]


def _training(results: Sequence[TrainingResult]) -> Figure:
    first = results[0]
    settings, k0 = first.settings, first.k0
    steps, users = np.arange(1, settings.steps + 1), len(first.trace.spent)
    individual = 100 * np.mean([result.trace.accuracy for result in results], axis=0)
    equal = 100 * np.mean([result.equal_steps for result in results], axis=0)
    active = np.mean([result.trace.active for result in results], axis=0)
    figure = _figure(8.0, 6.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.7, 1])
    _style(above)
    _style(below)
    seeds = "one seed" if len(results) == 1 else f"means over {len(results)} seeds"
    _title(
        figure,
        f"Individual {individual[-1]:.1f}%; worst case {individual[k0 - 1]:.1f}% stopping early, "
        f"{equal[-1]:.1f}% in equal steps",
        f"{first.images.name}, {users:,} users, for each epsilon = {settings.epsilon:g}, "
        f"delta = {settings.delta:g}; {seeds} of the noise.\n"
        "Not shown: a smaller clip norm for everybody, without individual accounting, which does "
        "as well",
    )
    above.plot(steps, individual, color=_BLUE, linewidth=2.0)
    above.plot(steps, equal, color=_INK, linewidth=1.3, linestyle=(0, (4, 2)))
    above.plot([k0, steps[-1]], [individual[k0 - 1]] * 2, color=_ORANGE, linestyle=":")
    above.plot(k0, individual[k0 - 1], "s", color=_ORANGE, zorder=3)
    lowest = min(float(np.quantile(curve, 0.05)) for curve in (individual, equal))
    highest = max(float(individual.max()), float(equal.max()))
    above.set_ylim(max(0.0, lowest - 3), min(100.0, highest + 2))
    above.legend(
        handles=[
            _line(_BLUE, "-", f"individual: noise {settings.noise_stddev:.0f}", 2.0),
            _line(_ORANGE, ":", f"worst case, same noise: stops at step {k0}", marker="s"),
            _line(
                _INK,
                (0, (4, 2)),
                f"worst case, same steps: noise {settings.noise_stddev_equal_steps:.0f}",
            ),
        ],
        frameon=False,
        loc="lower right",
    )
    above.set_ylabel("accuracy on test images (%)")
    below.plot(steps, active, color=_BLUE, linewidth=2.0)
    below.fill_between(steps, active, color=_BLUE, alpha=0.12, linewidth=0)
    below.set_ylim(0, 1.12 * users)
    below.set_ylabel("users with budget left")
    below.set_xlabel("training step")
    below.set_xlim(1, len(steps))
    below.yaxis.set_major_formatter("{x:,.0f}")
    return figure


def _sampled(by_clip_norm: Sequence[Sequence[SampledResult]]) -> Figure:
    first = by_clip_norm[0][0]
    settings, n = first.settings, len(first.images.train)
    figure = _figure(10.0, 7.6)
    above, below = figure.subplots(2, 2, height_ratios=[1.5, 1])
    for axes in (*above, *below):
        _style(axes)
    curves = [_sampled_curves(results) for results in by_clip_norm]
    lowest = min(float(curve[len(curve) // 4 :].min()) for group in curves for curve in group)
    highest = max(float(curve.max()) for group in curves for curve in group)
    for axes, results, group in zip(above, by_clip_norm, curves, strict=True):
        _accuracies_of_sampled(axes, results, group)
        axes.set_ylim(max(0.0, lowest - 3), min(100.0, highest + 1))
    above[0].set_ylabel("accuracy on test images (%)")
    _users_of_sampled(below[0], by_clip_norm[0])
    _spent_of_sampled(below[1], by_clip_norm)
    known, tuned = curves
    seeds = len(by_clip_norm[0])
    spent = np.mean([np.median(result.trace.spent) for result in by_clip_norm[1]])
    figure.suptitle(
        f"Individual {known[0][-1]:.1f}%, worst case {known[1][-1]:.1f}% in equal steps; with a "
        f"clip norm tuned\nto the data {tuned[0][-1]:.1f}% and {tuned[1][-1]:.1f}%, and half of "
        f"the users spent at most {spent:.0%} of their budget.\nNot shown: on the left, a smaller "
        "clip norm for everybody, which does as well",
        x=0.01,
        horizontalalignment="left",
        fontsize=13,
        color=_INK,
    )
    figure.supxlabel(
        f"{first.images.name}, {n:,} users, sampling rate {settings.sampling_rate:g}; for each "
        f"epsilon = {settings.epsilon:g}, delta = {settings.delta:g}; "
        + (
            f"one seed; so few test images: ± {100 * by_clip_norm[0][0].accuracy_error:.1f} points"
            if seeds == 1
            else f"means over {seeds} seeds, bands: standard errors"
        ),
        x=0.01,
        horizontalalignment="left",
        fontsize=10,
        color=_GREY,
    )
    return figure


def _sampled_curves(results: Sequence[SampledResult]) -> list[NDArray[np.float64]]:
    """Mean accuracies in percent: individual, as many steps, same noise, and without a pace."""
    kinds = [
        [result.trace.accuracy for result in results],
        [result.equal_steps for result in results],
        [result.same_noise for result in results],
        [result.unpaced.accuracy for result in results if result.unpaced is not None],
    ]
    return [100.0 * np.mean(kind, axis=0) for kind in kinds if kind]


def _accuracies_of_sampled(
    axes: Axes, results: Sequence[SampledResult], curves: list[NDArray[np.float64]]
) -> None:
    settings, k0 = results[0].settings, len(results[0].same_noise)
    individual, equal, stopped = curves[:3]
    last = len(individual)
    steps = np.arange(1, last + 1)
    axes.plot(steps, equal, color=_INK, linewidth=1.3, linestyle=_DASHES)
    if len(curves) > 3:
        axes.plot(steps, curves[3], color=_GREY, linewidth=1.3)
    axes.plot(steps, individual, color=_BLUE, linewidth=2.0)
    if len(results) > 1:
        for colour, kind in (
            (_BLUE, [result.trace.accuracy for result in results]),
            (_INK, [result.equal_steps for result in results]),
        ):
            mean = 100.0 * np.mean(kind, axis=0)
            error = 100.0 * np.std(kind, axis=0, ddof=1) / np.sqrt(len(results))
            axes.fill_between(
                steps, mean - error, mean + error, color=colour, alpha=0.15, linewidth=0
            )
    axes.plot(np.arange(1, k0 + 1), stopped, color=_ORANGE, linewidth=1.3)
    axes.plot([k0, last], [stopped[-1]] * 2, color=_ORANGE, linestyle=":")
    axes.plot(k0, stopped[-1], "s", color=_ORANGE, zorder=3)
    noise, more = settings.noise_stddev, settings.noise_stddev_equal_steps
    handles = [
        _line(_BLUE, "-", f"individual, noise {noise:.2f}: {individual[-1]:.1f}%", 2.0),
        _line(_INK, _DASHES, f"worst case, noise {more:.2f}: {equal[-1]:.1f}%"),
        _line(_ORANGE, ":", f"worst case, stops at {k0}: {stopped[-1]:.1f}%", marker="s"),
    ]
    if len(curves) > 3:
        handles.insert(1, _line(_GREY, "-", f"individual without a pace: {curves[3][-1]:.1f}%"))
    axes.legend(handles=handles, frameon=False, loc="lower right")
    axes.set_title(
        f"clip norm {settings.clip_norm:.2f}, {settings.words}",
        loc="left",
        fontsize=10,
        color=_INK,
    )
    axes.set_xlabel("training step")
    axes.set_xlim(1, last)


def _users_of_sampled(axes: Axes, results: Sequence[SampledResult]) -> None:
    first = results[0]
    n, k0 = len(first.images.train), len(first.same_noise)
    steps = np.arange(1, first.settings.steps + 1)
    paced = np.mean([result.trace.admitted for result in results], axis=0)
    axes.plot(steps, paced, color=_BLUE, linewidth=2.0, label="individual")
    unpaced = [result.unpaced.admitted for result in results if result.unpaced is not None]
    if unpaced:
        axes.plot(steps, np.mean(unpaced, axis=0), color=_GREY, label="individual without a pace")
    axes.plot([1, k0, k0], [n, n, 0], color=_ORANGE, linestyle=":", label="worst case, same noise")
    axes.set_ylim(0, 1.12 * n)
    axes.set_xlim(1, len(steps))
    axes.set_title(
        f"users charged, clip norm {first.settings.clip_norm:.2f}",
        loc="left",
        fontsize=10,
        color=_INK,
    )
    axes.set_ylabel("users")
    axes.set_xlabel("training step")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.1))


def _spent_of_sampled(axes: Axes, by_clip_norm: Sequence[Sequence[SampledResult]]) -> None:
    """Which share of the users spent at most so much, with the first seed."""
    for results, colour, style in zip(by_clip_norm, (_BLUE, _BLUE), ("-", _DASHES), strict=True):
        spent = np.sort(results[0].trace.spent)
        users = 100.0 * np.arange(1, len(spent) + 1) / len(spent)
        axes.plot(
            [0.0, *(100.0 * spent), 100.0],
            [0.0, *users, 100.0],
            color=colour,
            linestyle=style,
            drawstyle="steps-post",
            linewidth=2.0,
            label=f"individual, clip norm {results[0].settings.clip_norm:.2f}",
        )
    axes.plot(
        [0, 100, 100],
        [0, 0, 100],
        color=_ORANGE,
        linestyle=":",
        clip_on=False,
        label="worst case: everybody, all of it",
    )
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 103)
    axes.set_title("users who spent at most this share", loc="left", fontsize=10, color=_INK)
    axes.set_xlabel("spent share of the budget (%)")
    axes.set_ylabel("users (%)")
    axes.legend(frameon=False, loc="upper left")


def _daily_buyers(results: Sequence[MonitoringResult]) -> Figure:
    """The answers of the first seed under each accounting, on one scale; errors of all seeds."""
    first = results[0]
    days, k0 = len(first.answers), first.k0
    dates = [first.purchases.first_day + timedelta(day) for day in range(days)]
    when = np.array(dates, dtype="datetime64[D]")
    week = when[_WEEK - 1 :]
    figure = _figure(9.0, 9.6)
    *answered, below = figure.subplots(4, 1, sharex=True, height_ratios=[1, 1, 1, 0.6])
    errors = [
        _mean_and_error([getattr(result, name) for result in results])
        for name in ("mean_error", "mean_error_same_noise", "mean_error_equal_days")
    ]
    panels = (
        (f"individual accounting: noise {first.noise_stddev:.0f}", first.answers, _BLUE),
        (
            f"worst case, same noise: everybody's budget is spent after {k0} days",
            first.same_noise,
            _ORANGE,
        ),
        (
            f"worst case, as many days: noise {first.noise_stddev_equal_days:.0f}",
            first.equal_days,
            _GREY,
        ),
    )
    lowest = min(0.0, float(np.quantile(first.equal_days, 0.01)))
    highest = float(np.quantile(first.equal_days, 0.995))
    for axes, (words, answers, colour), error in zip(answered, panels, errors, strict=True):
        _style(axes)
        shown = len(answers)
        axes.plot(when[:shown], answers, ".", color=colour, alpha=0.5, markersize=4)
        axes.plot(week, _weekly_mean(first.buyers), color=_INK, linewidth=1.2)
        axes.set_title(f"{words}; an answer is {error} off", loc="left", fontsize=10, color=_INK)
        axes.set_ylim(lowest, highest)
        axes.set_ylabel("buyers a day")
    _style(below)
    answered[1].axvspan(
        when[k0 - 1].astype(float), when[-1].astype(float), color=_ORANGE, alpha=0.07, linewidth=0
    )
    answered[0].legend(
        handles=[
            _line(_BLUE, "none", "answer to a day", marker="."),
            _line(_INK, "-", "truth, mean of the last 7 days", 1.2),
        ],
        frameon=False,
        loc="upper right",
    )
    below.plot(week, _weekly_mean(first.buyers - first.admitted), color=_BLUE, linewidth=1.8)
    below.set_title(
        f"individual accounting: not counted, having bought on {first.settings.norm_budget} days; "
        f"{_by_year(first)}",
        loc="left",
        fontsize=10,
        color=_INK,
    )
    below.set_ylabel("buyers a day")
    below.set_ylim(bottom=0)
    below.set_xlim(when[0], when[-1])
    more = first.noise_stddev_equal_days / first.noise_stddev
    seeds = "one seed" if len(results) == 1 else f"errors: means over {len(results)} seeds"
    figure.suptitle(
        f"{days} days answered; the worst case stops after {k0}, or needs {more:.1f} times the "
        f"noise.\nCounting everybody on the first {first.settings.norm_budget} days of buying "
        "would give the same answers",
        x=0.01,
        horizontalalignment="left",
        fontsize=13,
        color=_INK,
    )
    figure.supxlabel(
        f"{first.purchases.name}, {first.purchases.customers:,} customers; for each epsilon = "
        f"{first.settings.epsilon:g}, delta = {first.settings.delta:g}; {seeds} of the noise",
        x=0.01,
        horizontalalignment="left",
        fontsize=10,
        color=_GREY,
    )
    return figure


def _mean_and_error(values: Sequence[float]) -> str:
    """A mean, with its standard error where there are several."""
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.1f}"


def _by_year(result: MonitoringResult) -> str:
    return ", ".join(
        f"{share:.1%} of {year}'s buyers" for year, share in result.missing_by_year.items()
    )


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
        f"{counts[-1]:,} in the last {100 / _BINS:g}%; {ran_out:,} ran out",
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


def _line(
    colour: str, style: Any, words: str, width: float = 1.3, marker: str | None = None
) -> Line2D:
    """An entry of a legend."""
    with demo_extra():
        from matplotlib.lines import Line2D
    return Line2D(
        [], [], color=colour, linestyle=style, linewidth=width, marker=marker, label=words
    )


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DOTS_PER_INCH)
    return path
