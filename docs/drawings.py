"""Pictures of the explanations: ``python -m docs.drawings`` writes them to ``docs/pictures``.

They have a background of their own, so they are readable on light and dark pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm as normal

from accounting import MEASURES, Gaussian, GdpFilter, gdp_budget, gdp_cost

FOLDER: Final = Path(__file__).with_name("pictures")
TEXT, FAINT, BLUE, ORANGE, GREY = "#23282e", "#c3c9d0", "#1f6f8b", "#d9772b", "#6b7280"
DELTA: Final = 1e-5
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
    figure, axes = _blank(7.4, 3.7)
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
    return figure


def three_epsilons() -> Figure:
    """Draw the epsilons of what was spent of a budget: fixed, at any time, and the budget's."""
    measure = MEASURES["gdp"]
    spent = np.linspace(1e-3, 1.0, 500)
    amounts = np.sqrt(spent)  # mu: the budget, mu squared, is 1
    fixed = [float(measure.epsilon([mu], DELTA)) for mu in amounts]
    any_time = measure.epsilon(amounts[:, np.newaxis], DELTA, when="any time", budget=2**44)
    figure, axes = _blank(7.4, 3.2)
    axes.axhline(fixed[-1], color=TEXT, linewidth=1)
    axes.plot(spent, fixed, color=GREY, linewidth=1.4, linestyle=(0, (4, 2)))
    axes.plot(spent, any_time, color=BLUE, linewidth=2.4, drawstyle="steps-pre")
    axes.annotate("the budget's epsilon: the one to publish", (0.02, fixed[-1] + 0.12), color=TEXT)
    axes.annotate("any-time epsilon:\nholds whenever the runs end", (0.02, 3.3), color=BLUE)
    axes.annotate("holds only if the amount is fixed beforehand", (0.42, 1.7), color=GREY)
    axes.set(xlabel="share of the budget spent", ylabel="epsilon", xlim=(0, 1), ylim=(0, 5))
    return figure


def risk() -> Figure:
    """Draw how many users in the data an attack finds, by its false-positive rate."""
    rates = np.linspace(1e-4, 0.2, 400)
    figure, axes = _blank(7.4, 3.2)
    for epsilon, colour in ((0.1, GREY), (1.0, BLUE), (3.0, TEXT), (8.0, ORANGE)):
        found = normal.cdf(normal.ppf(rates) + gdp_budget(epsilon, DELTA))
        axes.plot(100 * rates, 100 * found, color=colour, linewidth=2)
        place = 20.2, 100 * found[-1] - 2
        axes.annotate(f"epsilon {epsilon:g}", place, color=colour, annotation_clip=False)
    axes.set(
        xlabel="false-positive rate, %", ylabel="found at most, %", xlim=(0, 20), ylim=(0, 100)
    )
    axes.set_xticks(range(0, 21, 5))
    return figure


def _blank(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=TEXT, length=0)
    axes.xaxis.label.set_color(TEXT)
    axes.yaxis.label.set_color(TEXT)
    return figure, axes


def main() -> None:
    """Write the pictures."""
    pictures = {"filter": one_user, "epsilons": three_epsilons, "risk": risk}
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "one-user", "font.size": 11}):
        for name, draw in pictures.items():
            draw().savefig(FOLDER / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
