"""The tables and the picture of repeated training: results of ``bench.papers.continual``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.papers.continual import (
    ACCOUNTINGS,
    EPSILONS,
    SETTINGS,
    Accounting,
    Benchmark,
    Measured,
    Plan,
    Setting,
)
from bench.papers.rows import BLUE, GREEN, GREY, ORANGE

BASELINES: Final = ACCOUNTINGS[:-1]
TITLED: Final = 0.1
"""The epsilon in the title of the picture."""

_INK: Final = "#23282e"
_COLOURS: Final[dict[Accounting, str]] = {
    "worst case": GREY,
    "smaller clip norm": GREEN,
    "contribution bounding": ORANGE,
    "individual": BLUE,
}


class Report:
    """All settings at all epsilons, computed once."""

    def __init__(self, file: Path, seeds: int) -> None:
        self._file, self._seeds = file, range(1, seeds + 1)
        self.measured: dict[tuple[str, float], dict[Accounting, Measured]] = {}
        self.noiseless: dict[str, Measured] = {}
        self.untrained: dict[str, Measured] = {}

    def lines(self) -> Iterator[str]:
        """Yield the lines of the tables; the individual accounting is compared by seed."""
        differences = " | ".join(f"individual less {name}" for name in BASELINES)
        yield f"| AUC, % | {' | '.join(ACCOUNTINGS)} | {differences} |"
        yield "|---" * (1 + len(ACCOUNTINGS) + len(BASELINES)) + "|"
        plans: list[str] = []
        for setting in SETTINGS:
            benchmark = Benchmark(self._file, setting)
            for epsilon in EPSILONS:
                best = {name: benchmark.best_plan(name, epsilon) for name in ACCOUNTINGS}
                measured = {
                    name: benchmark.measure(plan, epsilon, self._seeds)
                    for name, plan in best.items()
                }
                self.measured[setting.name, epsilon] = measured
                for group, heavy in (("", False), (", heavy users", True)):
                    yield f"| {setting.name}, ε {epsilon:g}{group} | {_cells(measured, heavy)} |"
                plans += [_described(setting, epsilon, plan) for plan in best.values()]
            without = self.noiseless[setting.name] = benchmark.without_noise(self._seeds)
            untrained = self.untrained[setting.name] = benchmark.without_training(self._seeds)
            for name, one in (("without privacy", without), ("purchases so far", untrained)):
                found = (with_error(_by_seed(one, heavy)) for heavy in (False, True))
                yield f"{setting.name}, {name}: {', heavy users '.join(found)}"
        yield from plans

    def draw(self, path: Path) -> None:
        """Draw the AUC of the first two settings at all epsilons as an SVG file."""
        figure = Figure(figsize=(10.0, 5.4), layout="constrained", facecolor="white")
        gains = []
        for axes, setting in zip(figure.subplots(1, 2), SETTINGS[:2], strict=True):
            self._draw_auc(axes, setting)
            if setting == SETTINGS[0]:
                axes.legend(frameon=False, loc="lower right", fontsize=9)
            gain = with_error(self._gains(setting, TITLED, "contribution bounding"))
            gains.append(f"{gain} ({setting.name})")
        figure.suptitle(
            f"Trained again and again on customers who come and go: at epsilon {TITLED:g}, "
            f"individual\naccounting gains {' and '.join(gains)} points of AUC\n"
            "over contribution bounding",
            x=0.01,
            horizontalalignment="left",
            fontsize=13,
            color=_INK,
        )
        figure.supxlabel(
            "CDNOW, logistic regression: which customers buy in the next period? AUC on the 30 % "
            f"of customers who are held out, means of {len(self._seeds)} seeds.\nAll models of a "
            "line together give each customer the epsilon, at delta 0.00001. Each accounting has "
            "the best parameters of one grid,\ntuned on other seeds. Blue numbers: individual "
            "accounting less contribution bounding, paired by seed, and standard errors.",
            x=0.01,
            horizontalalignment="left",
            fontsize=9,
            color=GREY,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        with rc_context({"svg.hashsalt": "continual"}):
            figure.savefig(path, metadata={"Date": None})

    def _gains(self, setting: Setting, epsilon: float, baseline: Accounting) -> np.ndarray:
        """Return the gain of individual accounting over a baseline, (seeds,)."""
        measured = self.measured[setting.name, epsilon]
        return _by_seed(measured["individual"], False) - _by_seed(measured[baseline], False)

    def _draw_auc(self, axes: Axes, setting: Setting) -> None:
        _style(axes)
        places = np.arange(len(EPSILONS))
        for name in ACCOUNTINGS:
            of_all = (self.measured[setting.name, epsilon][name] for epsilon in EPSILONS)
            means = [float(_by_seed(measured, False).mean()) for measured in of_all]
            is_ours = name == "individual"
            axes.plot(
                places,
                means,
                "o-",
                color=_COLOURS[name],
                linewidth=2.6 if is_ours else 1.6,
                markersize=7 if is_ours else 5,
                label=name,
                zorder=3 if is_ours else 2,
            )
        for place, epsilon in enumerate(EPSILONS):
            axes.annotate(
                with_error(self._gains(setting, epsilon, "contribution bounding"), "+"),
                (place, float(axes.lines[-1].get_ydata()[place])),  # type: ignore[index]
                xytext=(2, 8),
                textcoords="offset points",
                horizontalalignment="right",
                fontsize=9,
                color=BLUE,
            )
        references = (
            ("without privacy", self.noiseless[setting.name]),
            ("no training: purchases so far", self.untrained[setting.name]),
        )
        for words, one in references:
            level = float(_by_seed(one, False).mean())
            axes.axhline(level, color=_INK, linewidth=1.0, linestyle=":")
            axes.annotate(
                words,
                (-0.75, level),
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=9,
                color=_INK,
            )
        axes.set_xticks(places, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes.set_xlim(-0.75, len(EPSILONS) - 0.75)
        axes.set_xlabel("epsilon of each customer, for all models together")
        axes.set_title(
            f"trained {setting.name}: AUC (%)", loc="left", fontsize=11, color=_INK, pad=10
        )


def with_error(values: Sequence[float] | np.ndarray, sign: str = "-") -> str:
    """Return a mean and its standard error; with the sign "+", positive means have one as well."""
    found = np.asarray(values)
    return f"{found.mean():{sign}.2f} ± {found.std(ddof=1) / np.sqrt(len(found)):.2f}"


def _by_seed(measured: Measured, heavy: bool) -> np.ndarray:
    return np.asarray((measured.heavy if heavy else measured.everyone).mean(axis=0))


def _cells(measured: dict[Accounting, Measured], heavy: bool) -> str:
    found = {name: _by_seed(one, heavy) for name, one in measured.items()}
    gains = [found["individual"] - found[name] for name in BASELINES]
    return " | ".join(map(with_error, [*found.values(), *gains]))


def _described(setting: Setting, epsilon: float, plan: Plan) -> str:
    return (
        f"{setting.name}, ε {epsilon:g}, {plan.accounting}: clip norm {plan.clip_norm:g}, "
        f"{plan.active} periods, learning rate {plan.learning_rate:g}, "
        f"noise {plan.noise_stddev:.0f}"
    )


def _style(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=_INK)
    axes.grid(axis="y", color="#e4e7ea", linewidth=0.8)
    axes.set_axisbelow(True)
