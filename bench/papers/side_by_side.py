"""Epsilon of ten settings here and in other libraries: the table of docs/comparison.md.

    python -m bench.papers.side_by_side

A library that is not installed has no column. AutoDP 0.2.3.1 needs numpy below 2 and scipy below
1.14, so its column comes from an environment of its own. Opacus's accountants work without PyTorch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from accounting import Gaussian, Laplace, PoissonGaussian, PureDP
from accounting.reports import NormGrid, ReportAccountant
from accounting.reports.bounds import Bounds

Step: TypeAlias = Gaussian | Laplace | PoissonGaussian | PureDP


class ComparedSetting(NamedTuple):
    """Steps of a user with norm 1 throughout, and the delta.

    Attributes:
        name: for the table.
        steps: pairs of a mechanism and a number of steps.
        delta: strictly between 0 and 1.
        pure: epsilon of each step if the mechanism is `PureDP`.
    """

    name: str
    steps: tuple[tuple[Step, int], ...]
    delta: float = 1e-5
    pure: float = 1.0


SETTINGS: Final = (
    ComparedSetting("Gaussian, noise 5, 1 step", ((Gaussian(5.0), 1),)),
    ComparedSetting("Gaussian, noise 100, 420 steps", ((Gaussian(100.0), 420),)),
    ComparedSetting("rate 0.01, noise 1, 1,000 steps", ((PoissonGaussian(1.0, 0.01), 1_000),)),
    ComparedSetting("rate 0.01, noise 0.65, 2,000 steps", ((PoissonGaussian(0.65, 0.01), 2_000),)),
    ComparedSetting("rate 0.001, noise 2, 10,000 steps", ((PoissonGaussian(2.0, 0.001), 10_000),)),
    ComparedSetting("rate 0.1, noise 4, 500 steps", ((PoissonGaussian(4.0, 0.1), 500),)),
    ComparedSetting(
        "rate 256/60,000, noise 1.1, 14,063 steps", ((PoissonGaussian(1.1, 256 / 60_000), 14_063),)
    ),
    ComparedSetting(
        "rate 0.01, noise 1 for 500 steps and noise 2 for 500",
        ((PoissonGaussian(1.0, 0.01), 500), (PoissonGaussian(2.0, 0.01), 500)),
    ),
    ComparedSetting("Laplace, scale 20, 100 steps", ((Laplace(20.0), 100),)),
    ComparedSetting("pure DP of epsilon 0.05, 100 steps", ((PureDP(), 100),), pure=0.05),
)


def certified(setting: ComparedSetting) -> Bounds:
    """Return the certified bounds and the estimate of this project's report."""
    grid = NormGrid(setting.pure, 1)
    mechanisms = [mechanism for mechanism, _ in setting.steps]
    counts = np.array([count for _, count in setting.steps])
    found = ReportAccountant(mechanisms, grid).epsilon(counts, setting.delta).bounds
    return Bounds(*map(float, found))


def google(setting: ComparedSetting) -> float | None:
    """Return the epsilon of dp-accounting's loss distributions, with their default grid."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    def event(mechanism: Step) -> Any:
        match mechanism:
            case Gaussian(noise):
                return dp_accounting.GaussianDpEvent(noise)
            case PoissonGaussian(noise, rate):
                gaussian = dp_accounting.GaussianDpEvent(noise)
                return dp_accounting.PoissonSampledDpEvent(rate, gaussian)
            case Laplace(scale):
                return dp_accounting.LaplaceDpEvent(scale)
            case PureDP():
                chance = 2.0 / (1.0 + np.exp(setting.pure))
                return dp_accounting.RandomizedResponseDpEvent(chance, 2)

    # dp-accounting has randomised response for the replacement of a user only: the same pair.
    is_pure = isinstance(setting.steps[0][0], PureDP)
    relation = dp_accounting.NeighboringRelation
    accountant = PLDAccountant(relation.REPLACE_ONE if is_pure else relation.ADD_OR_REMOVE_ONE)
    for mechanism, count in setting.steps:
        if is_pure:
            # dp-accounting 0.6.0 ignores the count of a randomised response.
            for _ in range(count):
                accountant.compose(event(mechanism))
        else:
            accountant.compose(event(mechanism), count)
    return float(accountant.get_epsilon(setting.delta))


def opacus(setting: ComparedSetting) -> float | None:
    """Return the upper bound of Opacus's PRV accountant; None for steps without samples."""
    accountant = _opacus_accountants().PRVAccountant()
    for mechanism, count in setting.steps:
        if not isinstance(mechanism, PoissonGaussian):
            return None
        step = (mechanism.noise_stddev, mechanism.sampling_rate, count)
        accountant.history.append(step)
    return float(accountant.get_epsilon(setting.delta))


def autodp(setting: ComparedSetting) -> float | None:
    """Return AutoDP's epsilon: exact for Gaussian steps, by Rényi divergences otherwise.

    AutoDP's Fourier accountant took more than five minutes for the first sampled setting.
    """
    from autodp import mechanism_zoo, transformer_zoo

    steps = []
    counts = [count for _, count in setting.steps]
    for mechanism, count in setting.steps:
        match mechanism:
            case Gaussian(noise):
                whole = mechanism_zoo.ExactGaussianMechanism(noise / np.sqrt(count))
                return float(whole.approxDP(setting.delta))
            case PoissonGaussian(noise, rate):
                one = mechanism_zoo.GaussianMechanism(noise)
                sample = transformer_zoo.AmplificationBySampling()
                steps.append(sample(one, rate, improved_bound_flag=True))
            case Laplace(scale):
                steps.append(mechanism_zoo.LaplaceMechanism(scale))
            case PureDP():
                chance = 1.0 / (1.0 + np.exp(-setting.pure))
                steps.append(mechanism_zoo.RandresponseMechanism(chance))
    return float(transformer_zoo.Composition()(steps, counts).approxDP(setting.delta))


def _opacus_accountants() -> Any:
    """Return the package `opacus.accountants`, also without PyTorch."""
    if find_spec("torch") is not None or "opacus" in sys.modules:
        return importlib.import_module("opacus.accountants")
    spec = find_spec("opacus")
    assert spec is not None
    assert spec.origin is not None
    package, optimizers = ModuleType("opacus"), ModuleType("opacus.optimizers")
    package.__path__ = [str(Path(spec.origin).parent)]
    vars(optimizers)["DPOptimizer"] = object  # named in annotations
    sys.modules |= {"opacus": package, "opacus.optimizers": optimizers}
    return importlib.import_module("opacus.accountants")


LIBRARIES: Final[dict[str, Callable[[ComparedSetting], float | None]]] = {
    "dp-accounting": google,
    "opacus": opacus,
    "autodp": autodp,
}
"""By the name of the distribution."""


def installed() -> Iterator[tuple[str, str]]:
    """Yield name and version of each library that is installed."""
    for name in LIBRARIES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    found = list(installed())
    yield f"| setting | here | {' | '.join(f'{name} {number}' for name, number in found)} |"
    yield "|---" * (2 + len(found)) + "|"
    for setting in SETTINGS:
        values = [certified(setting).upper, *(LIBRARIES[name](setting) for name, _ in found)]
        yield f"| {setting.name} | {' | '.join(map(cell, values))} |"


def cell(value: float | None) -> str:
    """Return a value as text."""
    return "–" if value is None else f"{value:.4f}"


if __name__ == "__main__":
    for line in table():
        print(line, flush=True)
