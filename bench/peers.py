"""Speed of the reports against dp-accounting, on the same histories in the same run.

``python -m bench.peers`` prints a table. A peer that is not installed is named as such.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from accounting.costs.mechanisms import PoissonGaussian
from accounting.exact.argument_checks import IntArray
from accounting.reports import METHODS, Method, NormGrid, ReportAccountant
from bench.report import section

DELTA = 1e-5
_ROUNDS = 3
# dp-accounting's own choice for Poisson-sampled Gaussian steps.
_DP_ACCOUNTING_ORDERS = (
    [1 + x / 10.0 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512]
)


@dataclass(frozen=True)
class Row:
    """One method: seconds to make its tables, seconds a user, and epsilon of the first user."""

    name: str
    tables: float = math.nan
    per_user: float = math.nan
    users: int = 0
    epsilon: float = math.nan

    def cells(self) -> list[str]:
        """The row as text."""
        if not self.users:
            return [self.name, "not installed", "", "", ""]
        tables = f"{self.tables:.3f} s" if self.tables == self.tables else "-"
        return [self.name, tables, _duration(self.per_user), str(self.users), f"{self.epsilon:.6f}"]


@dataclass(frozen=True)
class Workload:
    """Users whose steps all ran one mechanism, at norms spread over all levels of a grid."""

    users: int
    steps: int
    levels: int
    mechanism: PoissonGaussian

    def grid(self) -> NormGrid:
        """The levels, for a clip norm of 1."""
        return NormGrid(1.0, self.levels)

    def counts(self, steps: int | None = None) -> IntArray:
        """Histograms of `steps` steps each, every level as likely as another."""
        random = np.random.default_rng(0)
        share = np.full(self.levels, 1.0 / self.levels)
        return random.multinomial(steps or self.steps, share, self.users).astype(np.int64)


def ours(workload: Workload, method: Method) -> Row:
    """Time one method of `ReportAccountant`: the first call makes the tables, for one user."""
    counts = workload.counts()
    accountant = ReportAccountant(workload.mechanism, workload.grid())
    tables = _seconds(lambda: accountant.epsilon(counts[:1], DELTA, method))
    per_user = _best(lambda: accountant.epsilon(counts, DELTA, method)) / workload.users
    epsilon = float(accountant.epsilon(counts[0], DELTA, method))
    return Row(f"this, {method}", tables, per_user, workload.users, epsilon)


def flatness(workload: Workload, steps: Iterable[int]) -> list[tuple[int, float]]:
    """Return (steps, seconds a user) of the saddle point method."""
    accountant = ReportAccountant(workload.mechanism, workload.grid())

    def ask(counts: IntArray) -> Callable[[], object]:
        return lambda: accountant.epsilon(counts, DELTA, "saddlepoint")

    ask(workload.counts()[:1])()
    return [(n, _best(ask(workload.counts(n))) / workload.users) for n in steps]


def dp_accounting_renyi(workload: Workload, users: int) -> Row:
    """Compose every level once in its Renyi accountant; add those up for each user."""
    name = _named("dp-accounting", "RdpAccountant")
    if importlib.util.find_spec("dp_accounting") is None:
        return Row(name)
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant, compute_epsilon

    def tables() -> Any:
        rows = []
        for ratio in _ratios(workload):
            accountant = RdpAccountant(_DP_ACCOUNTING_ORDERS)
            gaussian = dp_accounting.GaussianDpEvent(ratio)
            rate = workload.mechanism.sampling_rate
            accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian))
            rows.append(accountant._rdp)  # there is no public way to keep it
        return np.array(rows)

    def epsilon(rows: Any, counts: IntArray) -> float:
        return float(compute_epsilon(_DP_ACCOUNTING_ORDERS, counts @ rows, DELTA)[0])

    return _each(name, workload, users, tables, epsilon)


def dp_accounting_pld(workload: Workload, users: int) -> Row:
    """Make every level's loss distribution once; compose them, as often as a user had each."""
    name = _named("dp-accounting", "PLD, interval 1e-4")
    if importlib.util.find_spec("dp_accounting") is None:
        return Row(name)
    from dp_accounting.pld import privacy_loss_distribution as pld

    def tables() -> Any:
        rate = workload.mechanism.sampling_rate
        return [pld.from_gaussian_mechanism(r, sampling_prob=rate) for r in _ratios(workload)]

    def epsilon(losses: Any, counts: IntArray) -> float:
        total = pld.identity()
        for one, count in zip(losses, counts.tolist(), strict=True):
            if count:
                total = total.compose(one.self_compose(count))
        return float(total.get_epsilon_for_delta(DELTA))

    return _each(name, workload, users, tables, epsilon)


def lines(workload: Workload, peer_users: int) -> list[str]:
    """Measure everything, and return a table for the report."""
    rows = [ours(workload, method) for method in METHODS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows.append(dp_accounting_renyi(workload, peer_users))
        rows.append(dp_accounting_pld(workload, peer_users))
    mechanism = workload.mechanism
    flat = (f"{n}: {_duration(s)}" for n, s in flatness(workload, (10, 1000, 1_000_000)))
    return section(
        "Reports, against peers",
        f"{workload.users} users, {workload.steps} steps each over {workload.levels} levels, "
        f"noise {mechanism.noise_stddev:g} clip norms, sampling rate {mechanism.sampling_rate:g}, "
        f"delta {DELTA:g}; the best of {_ROUNDS} rounds for ours, one round for the peers. Saddle "
        f"point per user, by the number of steps: {', '.join(flat)}.",
        ["method", "tables", "per user", "users", "epsilon of the first user"],
        [row.cells() for row in rows],
    )


def _ratios(workload: Workload) -> list[float]:
    """Return noise over norm of each level."""
    return [workload.mechanism.noise_stddev / norm for norm in workload.grid().norms.tolist()]


def _each(
    name: str,
    workload: Workload,
    users: int,
    tables: Callable[[], Any],
    epsilon: Callable[[Any, IntArray], float],
) -> Row:
    """Time a peer as `ours` is timed: its tables once, then one user after the other."""
    counts = workload.counts()[:users]
    made: list[Any] = []
    values: list[float] = []
    once = _seconds(lambda: made.append(tables()))
    seconds = _seconds(lambda: values.extend(epsilon(made[0], row) for row in counts))
    return Row(name, once, seconds / len(counts), len(counts), values[0])


def _named(package: str, what: str) -> str:
    try:
        return f"{package} {version(package)}, {what}"
    except PackageNotFoundError:
        return f"{package}, {what}"


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _best(action: Callable[[], object]) -> float:
    return min(_seconds(action) for _ in range(_ROUNDS))


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000, help="of each user")
    parser.add_argument("--levels", type=int, default=100)
    parser.add_argument("--noise", type=float, default=1.0, help="standard deviation / clip norm")
    parser.add_argument("--rate", type=float, default=0.01, help="Poisson sampling rate")
    parser.add_argument("--peer-users", type=int, default=2, help="peers are slow")
    options = parser.parse_args()
    mechanism = PoissonGaussian(options.noise, options.rate)
    workload = Workload(options.users, options.steps, options.levels, mechanism)
    print("\n".join(lines(workload, options.peer_users)))


if __name__ == "__main__":
    main()
