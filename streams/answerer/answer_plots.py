"""Plots of published answers over time, with their intervals and with the times without an answer.

Each query has a panel with one line, or one panel for each label. Quantiles, histograms and the
largest labels share a panel. Of many labels, those with the largest values are drawn.

A line is level for as long as its window lasts. It is dashed and orange where users can be missing:
provisional answers, and answers about admitted users only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from streams.answerer.answer_table import AnswerRow, AnswerSeries, AnswerTable
from streams.answerer.query_keys import Label
from streams.config import lacking
from streams.queries.continual_monitoring import quantile_of_noise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: Final = ("pdf", "png", "svg")
_WIDTH, _HEIGHT = 9.0, 2.6
_MOST_LABELS: Final = 6
_SHARED: Final = ("quantiles", "histogram", "top")
"""The kinds whose labels share a panel."""
_BLUE, _ORANGE, _GREY, _INK = "#1f6f8b", "#b85c16", "#8a9099", "#23282e"
_LINES: Final = ("#1f6f8b", "#7a4d9f", "#3a7d44", "#8c6d1f", "#a33b52", "#4a5560")


def plot_answers(table: AnswerTable) -> Figure:
    """Return a figure with the answers to every query of a table.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise lacking("a plot", "plot", error) from error
    panels = [(series, labels) for series in table.series() for labels in _panels_of(series)]
    figure = Figure(figsize=(_WIDTH, _HEIGHT * max(len(panels), 1) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    subplots = figure.subplots(max(len(panels), 1), squeeze=False)[:, 0]
    first: dict[tuple[str, str], Any] = {}
    for axes, (series, labels) in zip(subplots, panels, strict=False):
        _draw_lines(axes, series, labels)
        shared = first.setdefault((series.dataset, series.query), axes)
        if shared is not axes:
            axes.sharey(shared)
        _describe(axes, series, labels)
    subplots[-1].set_xlabel("time (UTC)", fontsize=8)
    return figure


def save_plot(table: AnswerTable, path: Path, format_: str) -> None:
    """Write a plot to a file.

    Args:
        table: the answers.
        path: the file.
        format_: one of ``FORMATS``.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    figure = plot_answers(table)
    from matplotlib import rc_context

    # Text stays text, and the same answers give the same file.
    metadata = {"Date": None} if format_ == "svg" else None
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "turnstile"}):
        figure.savefig(path, format=format_, dpi=150, metadata=metadata)


def _panels_of(series: AnswerSeries) -> list[Sequence[Label | None]]:
    """Return the labels of each panel: those with the largest values, in their order."""
    sums: dict[Label | None, float] = dict.fromkeys(series.labels, 0.0)
    for row in (row for window in series.windows for row in window.rows):
        sums[row.label] += row.value or 0.0
    largest = sorted(sums, key=lambda label: -sums[label])[:_MOST_LABELS]
    labels = [label for label in sums if label in largest]
    return [labels] if series.kind in _SHARED else [[label] for label in labels]


def _draw_lines(axes: Any, series: AnswerSeries, labels: Sequence[Label | None]) -> None:
    for label, colour in zip(labels, _LINES, strict=False):
        rows = [row for window in series.windows for row in window.rows if row.label == label]
        named = set()
        for can_miss_users, part in _segments(rows):
            missing = "provisional" if part[0].provisional else "admitted users only"
            name = missing if can_miss_users else "all users"
            shown = _ORANGE if can_miss_users and len(labels) == 1 else colour
            times = np.array([*(row.start for row in part), part[-1].end], dtype=object)
            values, lower, upper = (
                np.array([*numbers, numbers[-1]], dtype=float)
                for numbers in zip(
                    *((row.value, row.lower, row.upper) for row in part), strict=True
                )
            )
            text = name if len(labels) == 1 else f"{label}"
            axes.fill_between(
                times, lower, upper, step="post", color=shown, alpha=0.22, linewidth=0
            )
            axes.plot(
                times,
                values,
                drawstyle="steps-post",
                color=shown,
                linestyle=(0, (3, 1)) if can_miss_users else "-",
                linewidth=1.1,
                label="_" if text in named else text,
            )
            named.add(text)
        if len(labels) == 1:
            _mark_shared(axes, rows)
    _mark_gaps(axes, series)
    axes.set_ylabel(series.unit)
    if len(labels) > 1 or series.gaps or any(row.block_end or row.can_miss_users for row in rows):
        axes.legend(fontsize=8, ncols=4, loc="best", edgecolor="white")


def _mark_shared(axes: Any, rows: Sequence[AnswerRow]) -> None:
    """Draw for each corrected block a bar with the interval of the error that its windows share."""
    corrected = [row for row in rows if row.shared_stddev]
    for number, (_, block) in enumerate(groupby(corrected, key=lambda row: row.block_end)):
        part = list(block)
        middle = part[len(part) // 2].start
        level = np.mean([row.value for row in part])
        half = quantile_of_noise(part[0].confidence, 1) * (part[0].shared_stddev or 0.0)
        bar = axes.errorbar([middle], [level], yerr=[half], color=_INK, capsize=4, linewidth=1.4)
        bar.set_label("_" if number else "error that a block shares")


def _segments(rows: Sequence[AnswerRow]) -> Iterator[tuple[bool, list[AnswerRow]]]:
    """Yield windows that follow one another without a gap, all of one kind of answer."""
    part: list[AnswerRow] = []
    for row in rows:
        if part and (row.start > part[-1].end or row.can_miss_users != part[-1].can_miss_users):
            yield part[-1].can_miss_users, part
            part = []
        part.append(row)
    if part:
        yield part[-1].can_miss_users, part


def _mark_gaps(axes: Any, series: AnswerSeries) -> None:
    for number, gap in enumerate(series.gaps):
        span = axes.axvspan(
            gap.start, gap.end, facecolor="#eef0f2", edgecolor=_GREY, hatch="///", linewidth=0
        )
        span.set_label("_" if number else "not answered")


def _describe(axes: Any, series: AnswerSeries, labels: Sequence[Label | None]) -> None:
    dates: Any = import_module("matplotlib.dates")
    label = f": {labels[0]}" if len(labels) == 1 and labels[0] is not None else ""
    count = len(series.labels)
    left_out = f", the largest {_MOST_LABELS} of {count} labels" if count > _MOST_LABELS else ""
    axes.set_title(
        f"{series.query}{label}{left_out}", loc="left", fontsize=10, color=_INK, weight="bold"
    )
    confidences = {window.confidence for window in series.windows}
    held = ", ".join(f"{100 * confidence:g} %" for confidence in sorted(confidences))
    axes.set_title(
        f"dataset {series.dataset}, interval {held}", loc="right", fontsize=8, color=_GREY
    )
    axes.set_xlim(series.windows[0].start, series.windows[-1].end)
    locator = dates.AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e7ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_formatter("{x:,.10g}")
