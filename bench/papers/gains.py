"""What individual accounting gains over the strongest baselines: the tables of docs/results.md.

    python -m bench.papers.gains --data DIR

DIR has CDNOW_master.txt and the MNIST test files in any of its folders.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench.papers import dpsgd, purchases, trainings
from bench.papers.continual_report import Report
from bench.papers.images import load_digits
from bench.papers.mnist import IMAGES_FILE, load_mnist
from streams.demo.purchases import PURCHASES_FILE
from streams.demo.revenue_plans import ACCOUNTINGS, best_plan, errors


def totals(file: Path, seeds: int, picture: Path | None = None) -> Iterator[str]:
    """Yield the lines of the table of CDNOW's daily totals."""
    yield (
        f"| CDNOW, RMSE of a day's total | a day's mean | {' | '.join(ACCOUNTINGS)} "
        f"| {' | '.join(f'individual, less {name}' for name in ACCOUNTINGS[:-1])} |"
    )
    yield "|---" * (2 * len(ACCOUNTINGS) + 1) + "|"
    for total, caps in purchases.CAPS.items():
        data = purchases.load(file, total)
        cells, by_seed = [], {}
        for accounting in ACCOUNTINGS:
            plan = best_plan(data, accounting, caps)
            found = np.array(errors(purchases.sums(data, plan), data, plan.noise_stddev, seeds))
            by_seed[accounting] = found
            mean, error = _mean_and_error(found)
            cells.append(f"{mean:,.4g} ± {error:.2g} (cap {plan.cap:g}, {plan.active_days} days)")
        for accounting in ACCOUNTINGS[:-1]:
            mean, error = _mean_and_error(by_seed["individual"] - by_seed[accounting])
            cells.append(f"{mean:,.4g} ± {error:.2g}")
        yield f"| {total} | {data.totals.mean():,.0f} | {' | '.join(cells)} |"


def accuracies(file: Path, seeds: int, picture: Path | None = None) -> Iterator[str]:
    """Yield the lines of the table of trainings, with differences paired by seed."""
    digits, mnist = load_digits(), load_mnist(file.parent)
    plans: dict[str, Callable[[int], np.ndarray]] = {
        "MNIST, full batches": partial(trainings.full_batches, mnist, trainings.MNIST),
        "digits, full batches": partial(trainings.full_batches, digits, trainings.DIGITS),
        "MNIST, samples": partial(trainings.samples, mnist, dpsgd.MNIST),
        "digits, samples": partial(trainings.samples, digits, dpsgd.DIGITS),
        "digits, samples, tuned": partial(trainings.samples, digits, dpsgd.DIGITS_TUNED),
    }
    yield (
        f"| accuracy, % | {' | '.join(trainings.WAYS)} | individual, less worst case "
        "| smaller clip norm, less individual |"
    )
    yield "|---|---|---|---|---|---|"
    for name, train in plans.items():
        found = 100.0 * train(seeds)
        columns = [*found.T, *(after - before for before, after in pairwise(found.T))]
        cells = ("{:.2f} ± {:.2f}".format(*_mean_and_error(column)) for column in columns)
        yield f"| {name} | {' | '.join(cells)} |"


def repeated(file: Path, seeds: int, picture: Path | None) -> Iterator[str]:
    """Yield the lines of the tables of repeated training, and draw the picture."""
    report = Report(file, seeds)
    yield from report.lines()
    if picture is not None:
        report.draw(picture)


TABLES: dict[str, tuple[str, Callable[[Path, int, Path | None], Iterator[str]]]] = {
    "totals": (PURCHASES_FILE, totals),
    "repeated": (PURCHASES_FILE, repeated),
    "trainings": (IMAGES_FILE, accuracies),
}
"""The data of each table, and its lines."""


def _mean_and_error(values: Iterable[float]) -> tuple[float, float]:
    found = np.array([*values])
    return float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(len(found)))


def main() -> None:
    """Print the tables, line by line; minutes."""
    parser = argparse.ArgumentParser(prog="python -m bench.papers.gains", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="with CDNOW and MNIST")
    parser.add_argument("--seeds", type=int, default=10, help="of the noise (default: 10)")
    parser.add_argument("--only", choices=TABLES, nargs="+", default=[*TABLES], help="tables")
    parser.add_argument("--picture", type=Path, help="SVG file to write, of repeated training")
    options = parser.parse_args()
    for chosen in options.only:
        name, table = TABLES[chosen]
        found = sorted(options.data.rglob(name))
        if not found:
            parser.error(f"there is no {name} in {options.data}")
        for line in table(found[0], options.seeds, options.picture):
            print(line, flush=True)


if __name__ == "__main__":
    main()
