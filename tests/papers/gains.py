"""What individual accounting gains over the strongest baselines: the tables of docs/results.md.

    python -m tests.papers.gains --data DIR

DIR has CDNOW_master.txt and the MNIST test files in any of its folders.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from streams.demo.images import IMAGES_FILE, load_digits, load_mnist
from streams.demo.purchases import PURCHASES_FILE
from streams.demo.sampled import SAMPLED_DIGITS, SAMPLED_MNIST
from streams.demo.training import DIGITS, MNIST
from tests.papers import purchases, trainings


def totals(file: Path, seeds: int) -> Iterator[str]:
    """Yield the lines of the table of CDNOW's daily totals."""
    yield f"| CDNOW, RMSE of a day's total | a day's mean | {' | '.join(purchases.WAYS)} |"
    yield "|---|---|---|---|---|"
    for total, caps in purchases.CAPS.items():
        data = purchases.load(file, total)
        cells = []
        for way in purchases.WAYS:
            plan = purchases.best(data, way, caps)
            mean, error = _mean_and_error(purchases.errors(data, plan, seeds))
            cells.append(f"{mean:,.4g} ± {error:.2g} (cap {plan.cap:g}, {plan.days} days)")
        yield f"| {total} | {data.truth.mean():,.0f} | {' | '.join(cells)} |"


def accuracies(file: Path, seeds: int) -> Iterator[str]:
    """Yield the lines of the table of the demo's trainings, with differences paired by seed."""
    digits, mnist = load_digits(), load_mnist(file.parent)
    plans: dict[str, Callable[[int], tuple[float, ...]]] = {
        "MNIST, full batches": partial(trainings.full_batches, mnist, MNIST),
        "digits, full batches": partial(trainings.full_batches, digits, DIGITS),
        "MNIST, samples": partial(trainings.samples, mnist, SAMPLED_MNIST[0]),
        "digits, samples": partial(trainings.samples, digits, SAMPLED_DIGITS[0]),
        "digits, samples, tuned": partial(trainings.samples, digits, SAMPLED_DIGITS[1]),
    }
    yield (
        f"| accuracy, % | {' | '.join(trainings.WAYS)} | individual, less worst case "
        "| smaller clip norm, less individual |"
    )
    yield "|---|---|---|---|---|---|"
    for name, train in plans.items():
        found = 100.0 * np.array([train(seed) for seed in range(1, seeds + 1)])
        columns = [*found.T, *(after - before for before, after in pairwise(found.T))]
        cells = ("{:.2f} ± {:.2f}".format(*_mean_and_error(column)) for column in columns)
        yield f"| {name} | {' | '.join(cells)} |"


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


def main() -> None:
    """Print both tables, line by line; minutes."""
    parser = argparse.ArgumentParser(prog="python -m tests.papers.gains", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="with CDNOW and MNIST")
    parser.add_argument("--seeds", type=int, default=10, help="of the noise (default: 10)")
    options = parser.parse_args()
    for table, name in ((totals, PURCHASES_FILE), (accuracies, IMAGES_FILE)):
        found = sorted(options.data.rglob(name))
        if not found:
            parser.error(f"there is no {name} in {options.data}")
        for line in table(found[0], options.seeds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
