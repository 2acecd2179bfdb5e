"""Pictures of what was measured: drawn from the tables of docs/performance.md, so that both agree.

A cell is a number, or a range ("1.2 to 1.6 million"), or several ("11.7 / 14.6 / 19.3").
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from ink import Ink, axes_for
from matplotlib.figure import Figure

_PAGE = Path(__file__).parents[1] / "performance.md"
_NUMBER = re.compile(r"[0-9.]+")


def throughput(ink: Ink) -> Figure:
    """Users a second, of a worker and of those beside it."""
    head, rows = _table("users/s, one worker")
    figure, axes = axes_for(ink, 7.2, 0.55 + 0.3 * len(rows) * (len(head) - 1))
    colours = (ink.first, ink.third, ink.second)
    height = 0.8 / (len(head) - 1)
    for series, name in enumerate(head[1:]):
        for place, row in enumerate(rows):
            numbers = _numbers(row[1 + series])
            low, high = numbers[0], numbers[-1]
            at = place + series * height
            axes.barh(at, high, 0.85 * height, color=colours[series], alpha=0.35)
            axes.barh(at, low, 0.85 * height, color=colours[series])
            words = f"{name}: {row[1 + series]}"
            axes.annotate(words, (high, at), xytext=(6, 0), textcoords="offset points",
                          va="center", fontsize=9, color=ink.text)  # fmt: skip
    axes.set_yticks(np.arange(len(rows)) + height, [row[0] for row in rows])
    axes.invert_yaxis()
    most = max(max(_numbers(cell)) for row in rows for cell in row[1:])
    axes.set(xlabel="million users a second", xlim=(0, 2.4 * most))
    return figure


def latency(ink: Ink) -> Figure:
    """Milliseconds of a step, from the middle to the slowest of a hundred, beside an echo."""
    head, rows = _table("one step of 20 users")
    figure, axes = axes_for(ink, 7.2, 0.7 + 0.42 * len(rows) * (len(head) - 1))
    names = []
    for row in rows:
        for series, cell in enumerate(row[1:]):
            middle, _, slowest = _numbers(cell)
            colour = ink.first if series == 0 else ink.third
            axes.plot([middle, slowest], [len(names)] * 2, color=colour, linewidth=6, alpha=0.35)
            axes.plot(_numbers(cell), [len(names)] * 3, "o", color=colour, markersize=6)
            names.append(f"{head[1 + series]}, {row[0]}")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="ms of a step: p50, p90, p99", xlim=(0, None))
    axes.margins(y=0.15)
    return figure


def _table(first: str) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the table whose first cell begins so."""
    lines = iter(_PAGE.read_text(encoding="utf-8").splitlines())
    head = next(cells for line in lines if (cells := _cells(line)) and cells[0].startswith(first))
    next(lines)
    rows = []
    for line in lines:
        if not (cells := _cells(line)):
            break
        rows.append(cells)
    return head, rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []


def _numbers(cell: str) -> list[float]:
    return [float(number) for number in _NUMBER.findall(cell)]
