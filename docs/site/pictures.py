"""``{picture} NAME``: drawn by the library itself while the site is built, for light and dark."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import ClassVar

import matplotlib
import numpy as np
from docutils import nodes
from docutils.parsers.rst import directives
from ink import INKS, Ink, axes_for
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from accounting import Gaussian, GdpFilter, gdp_cost

_FOLDER = "_pictures"
_BUDGET = 1.0


def _spending(norms: NDArray[np.float64], noise: float) -> tuple[NDArray, NDArray]:
    """What users have spent after each step, and who was admitted: both (steps, users)."""
    rule = GdpFilter(_BUDGET)
    state = rule.initial_state(norms.shape[1])
    spent, admitted = [], []
    for row in norms:
        state, who = rule.admit(state, gdp_cost(Gaussian(noise), row))
        spent.append(_BUDGET - rule.remaining(state))
        admitted.append(who)
    return np.array(spent), np.array(admitted)


def _filter(ink: Ink) -> Figure:
    figure, axes = axes_for(ink, 7.2, 3.6)
    steps = np.arange(1, 41)
    random = np.random.default_rng(4)
    shares = np.column_stack(
        [
            np.full(40, 1.0),
            0.95 - 0.8 * (1 - np.exp(-steps / 9)) + random.uniform(-0.08, 0.08, 40),
            random.uniform(0.1, 0.45, 40),
        ]
    )
    shares[31:, 0] = 0.22
    spent, admitted = _spending(shares, noise=5.16)
    names = ("always the longest norm", "learns, and is charged less", "contributes little")
    for user, colour in enumerate((ink.second, ink.first, ink.third)):
        axes.step(steps, spent[:, user], where="post", color=colour, linewidth=2)
        out = ~admitted[:, user]
        axes.plot(steps[out], spent[out, user], "x", color=colour, markersize=6)
        axes.annotate(
            names[user],
            (steps[-1], spent[-1, user]),
            xytext=(6, 0),
            va="center",
            textcoords="offset points",
            color=colour,
            annotation_clip=False,
        )
    axes.axhline(_BUDGET, color=ink.text, linewidth=1, linestyle=(0, (4, 2)))
    axes.annotate("budget", (1, _BUDGET), xytext=(0, 5), textcoords="offset points", color=ink.text)
    first = int(np.flatnonzero(~admitted[:, 0])[0])
    line = {"arrowstyle": "-", "color": ink.second}
    for words, at, place in (
        ("HALT: this step does not fit", first + 1, (23.0, 0.72)),
        ("cheaper steps fit again", 33, (33.0, 0.84)),
    ):
        axes.annotate(words, (steps[at], spent[at, 0]), place, color=ink.second, arrowprops=line)
    axes.set(xlabel="step", ylabel="spent (mu squared)", ylim=(0, 1.12), xlim=(0, 40.5))
    return figure


def _active(ink: Ink) -> Figure:
    figure, axes = axes_for(ink, 7.2, 2.9)
    random = np.random.default_rng(0)
    steps = np.arange(1, 121)
    hardness = random.beta(1.2, 3.0, 1_000)
    shares = np.clip(
        hardness + (1 - hardness) * np.exp(-steps[:, np.newaxis] / 25 * (1.2 - hardness)), 0, 1
    )
    _, admitted = _spending(shares, noise=5.515)
    axes.step(steps, admitted.sum(axis=1), where="post", color=ink.first, linewidth=2)
    worst = int(_spending(np.ones((120, 1)), noise=5.515)[1].sum())
    axes.step([1, worst, worst, 120], [1000, 1000, 0, 0], color=ink.second, linewidth=2)
    axes.annotate("worst case", (worst, 500), xytext=(-6, 0), textcoords="offset points",
                  ha="right", color=ink.second)  # fmt: skip
    axes.annotate("individual", (70, float(admitted[70].sum())), xytext=(6, 6),
                  textcoords="offset points", color=ink.first)  # fmt: skip
    axes.set(xlabel="step", ylabel="persons taking part", ylim=(0, 1080), xlim=(0, 121))
    return figure


_PICTURES: dict[str, Callable[[Ink], Figure]] = {
    "filter": _filter,
    "active": _active,
}


class Picture(SphinxDirective):
    """One of the pictures above, as two images of which a page shows one."""

    required_arguments = 1
    option_spec: ClassVar = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """The images, as HTML."""
        name = self.arguments[0]
        if name not in _PICTURES:
            raise self.error(f"there is no picture {name!r}; there are {sorted(_PICTURES)}")
        folder = "../" * self.env.docname.count("/") + _FOLDER
        images = (
            f'<img class="picture only-{ink.name}" src="{folder}/{name}-{ink.name}.svg" '
            f'alt="{escape(self.options["alt"])}">'
            for ink in INKS
        )
        return [nodes.raw("", image, format="html") for image in images]


def _draw(app: Sphinx) -> None:
    folder = Path(app.outdir, _FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in _PICTURES.items():
        for ink in INKS:
            with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
                draw(ink).savefig(
                    folder / f"{name}-{ink.name}.svg", transparent=True, metadata={"Date": None}
                )


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("picture", Picture)
    app.connect("builder-inited", _draw)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
