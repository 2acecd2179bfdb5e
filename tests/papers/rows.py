"""One line of the table, and the look of the plots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = "#1f6f8b", "#d9772b", "#4d8b31", "#8a9099"


@dataclass(frozen=True)
class Row:
    """A figure of a paper and the same figure as computed here."""

    source: str
    what: str
    published: str
    here: str


def markdown(rows: Iterable[Row]) -> str:
    """The rows as a table."""
    head = ["| source | what | published | here |", "|---|---|---|---|"]
    return "\n".join(
        head + [f"| {row.source} | {row.what} | {row.published} | {row.here} |" for row in rows]
    )


def figure(columns: int = 1) -> Figure:
    """An empty figure with room for so many plots side by side."""
    return Figure(figsize=(5.2 * columns, 3.6), layout="constrained")


def save(drawing: Figure, path: Path) -> None:
    """Write a PNG file."""
    for axes in drawing.axes:
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=120)
