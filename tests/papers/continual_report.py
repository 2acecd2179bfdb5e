"""The tables and the picture of repeated training: results of ``tests.papers.continual``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.papers.continual import (
    ACCOUNTINGS,
    DELTA,
    EPSILONS,
    SETTINGS,
    Accounting,
    Benchmark,
    Measured,
    Plan,
    Setting,
)
from tests.papers.rows import BLUE, GREEN, GREY, ORANGE

BASELINES: Final = ACCOUNTINGS[:-1]
PICTURED: Final = (SETTINGS[0], 0.1)
"""The setting and the epsilon of the left half of the picture."""

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
            untrained = benchmark.without_training(self._seeds)
            for name, one in (("without privacy", without), ("purchases so far", untrained)):
                found = (with_error(_by_seed(one, heavy)) for heavy in (False, True))
                yield f"{setting.name}, {name}: {', heavy users '.join(found)}"
        yield from plans

    def draw(self, path: Path) -> None:
        """Draw the AUC by period of one setting, and the gains of all epsilons in it, as SVG."""
        setting, epsilon = PICTURED
        measured = self.measured[setting.name, epsilon]
        figure = Figure(figsize=(10.0, 4.6), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2, width_ratios=[1.7, 1.0])
        self._draw_periods(left, setting, measured)
        self._draw_gains(right, setting)
        gains = [
            with_error(_by_seed(measured["individual"], False) - _by_seed(measured[name], False))
            for name in ("contribution bounding", "worst case")
        ]
        figure.suptitle(
            f"A model trained again every {setting.days} days. At epsilon {epsilon:g}, individual "
            f"accounting gains\n{gains[0]} points of AUC over contribution bounding, and {gains[1]}"
            " over the worst case",
            x=0.01,
            horizontalalignment="left",
            fontsize=13,
            color=_INK,
        )
        figure.supxlabel(
            f"CDNOW, logistic regression, {len(self._seeds)} seeds. All models of a line together "
            f"give each customer the same epsilon, delta {DELTA:g}. Every accounting has its best "
            "parameters.",
            x=0.01,
            horizontalalignment="left",
            fontsize=9,
            color=GREY,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        with rc_context({"svg.hashsalt": "continual"}):
            figure.savefig(path, metadata={"Date": None})

    def _draw_periods(
        self, axes: Axes, setting: Setting, measured: dict[Accounting, Measured]
    ) -> None:
        _style(axes)
        periods = np.arange(2, len(measured["individual"].everyone) + 2)
        without = self.noiseless[setting.name].everyone.mean(axis=1)
        axes.plot(periods, without, ":", color=_INK, linewidth=1.2, label="without privacy")
        for name in reversed(ACCOUNTINGS):
            width = 2.4 if name == "individual" else 1.6
            values = measured[name].everyone.mean(axis=1)
            axes.plot(periods, values, color=_COLOURS[name], linewidth=width, label=name)
        axes.set(xlabel=f"period of {setting.days} days", xlim=(2, periods[-1]))
        axes.set_title("AUC on other customers (%)", loc="left", fontsize=11, color=_INK)
        axes.legend(frameon=False, loc="lower right", fontsize=9)

    def _draw_gains(self, axes: Axes, setting: Setting) -> None:
        _style(axes)
        for place, name in enumerate(BASELINES):
            gains = np.array(
                [
                    _by_seed(measured["individual"], False) - _by_seed(measured[name], False)
                    for epsilon in EPSILONS
                    for measured in [self.measured[setting.name, epsilon]]
                ]
            )
            axes.errorbar(
                np.arange(len(EPSILONS)) + 0.16 * (place - 1),
                gains.mean(axis=1),
                gains.std(axis=1, ddof=1) / np.sqrt(gains.shape[1]),
                fmt="o",
                color=_COLOURS[name],
                label=f"over {name}",
                capsize=3,
            )
        axes.axhline(0.0, color=_INK, linewidth=0.8)
        axes.set_xticks(range(len(EPSILONS)), [f"epsilon {epsilon:g}" for epsilon in EPSILONS])
        axes.set_xlim(-0.5, len(EPSILONS) - 0.5)
        axes.set_title("gain of individual accounting", loc="left", fontsize=11, color=_INK)
        axes.legend(frameon=False, loc="upper right", fontsize=9)


def with_error(values: Sequence[float] | np.ndarray) -> str:
    """Return a mean and its standard error."""
    found = np.asarray(values)
    return f"{found.mean():.2f} ± {found.std(ddof=1) / np.sqrt(len(found)):.2f}"


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
