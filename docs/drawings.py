"""Pictures of the explanations: ``python -m docs.drawings`` writes them to ``docs/pictures``.

They have a background of their own, so they are readable on light and dark pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from accounting import Gaussian, GdpFilter, gdp_cost

FOLDER: Final = Path(__file__).with_name("pictures")
TEXT, FAINT, BLUE, ORANGE, GREY = "#23282e", "#c3c9d0", "#1f6f8b", "#d9772b", "#6b7280"
NOISE: Final = 3.0
NORMS: Final = np.array([1.0] * 5 + [0.8] * 4 + [0.7] + [1.0] * 3 + [0.5] * 6)
"""The norms of one user, step by step."""


def one_user() -> Figure:
    """Draw what one user has spent, the odometer, and the steps that do not fit."""
    rule = GdpFilter(1.0)
    state = rule.initial_state(1)
    spent, is_admitted = [0.0], []
    for norm in NORMS:
        state, admitted = rule.admit(state, gdp_cost(Gaussian(NOISE), norm[np.newaxis]))
        spent.append(1.0 - float(rule.remaining(state)[0]))
        is_admitted.append(bool(admitted[0]))
    steps = np.arange(len(spent))
    ticks = np.ceil(np.array(spent) * 8) / 8
    figure = Figure(figsize=(7.4, 3.7), layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=TEXT, length=0)
    axes.step(steps, ticks, where="post", color=GREY, linewidth=1.4, linestyle=(0, (4, 2)))
    axes.step(steps, spent, where="post", color=BLUE, linewidth=2.4)
    axes.axhline(1.0, color=TEXT, linewidth=1)
    halted = np.flatnonzero(~np.array(is_admitted)) + 1
    axes.plot(halted, np.array(spent)[halted], "x", color=ORANGE, markersize=8, mew=2.2)
    for words, place, colour, at in (
        ("HALT: the step does not fit", (7.6, 0.64), ORANGE, int(halted[1])),
        ("cheaper steps are admitted", (12.4, 0.5), BLUE, 15),
        ("HALT again", (16.6, 0.74), ORANGE, int(halted[4])),
    ):
        line = {"arrowstyle": "-", "color": colour, "shrinkB": 6}
        axes.annotate(words, (at, spent[at]), place, color=colour, arrowprops=line)
    axes.annotate("budget", (0.2, 1.03), color=TEXT)
    axes.annotate("odometer: rises in eighths", (0.5, 0.78), color=GREY)
    axes.annotate("charged sum", (4.3, 0.36), color=BLUE)
    axes.set(xlabel="step", ylabel="mu squared", xlim=(0, 19.5), ylim=(0, 1.12))
    axes.set_xticks(range(0, 20, 2))
    axes.xaxis.label.set_color(TEXT)
    axes.yaxis.label.set_color(TEXT)
    return figure


def main() -> None:
    """Write the pictures."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "one-user", "font.size": 11}):
        one_user().savefig(FOLDER / "filter.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
