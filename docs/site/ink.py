"""Colours and axes of the pictures, for light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Ink:
    """Colours of a page."""

    name: str
    text: str
    faint: str
    first: str
    second: str
    third: str


INKS = (
    Ink("light", "#23282e", "#c3c9d0", "#1f6f8b", "#d9772b", "#6b7280"),
    Ink("dark", "#d6dae0", "#454c55", "#5bb3d0", "#f0a05a", "#9aa3ad"),
)


def axes_for(ink: Ink, width: float, height: float) -> tuple[Figure, Axes]:
    """Empty axes in these colours, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(ink.faint)
    axes.tick_params(colors=ink.text, length=0)
    axes.xaxis.label.set_color(ink.text)
    axes.yaxis.label.set_color(ink.text)
    return figure, axes
