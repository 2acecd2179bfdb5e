"""Train a model again every month on customers who come and go, under one guarantee.

    python continual_training.py                              # a simulated shop, budgets in memory
    python continual_training.py --data CDNOW_master.txt
    python continual_training.py --kafka localhost:9092       # the service of ``turnstile up``
    python continual_training.py --show-private               # for the operator only

The model predicts which recent customers buy in the next 30 days. A customer has an example in a
month after buying in the 13 weeks before it. Whether a customer has an example, and which one,
depends on that customer's purchases alone. A customer is charged in the months with an example, and
only the norms of that customer's own gradients. Most customers leave long before their budgets are
spent. A customer with a spent budget is halted, and training goes on.

It prints the models, which are public. Exact counts of customers, and the AUC on customers whose
examples are not charged, are private: ``--show-private`` prints them, for people who may see the
data. Publish nothing of them.

It simulates all months in one process, and keeps neither models nor the released step: it is no
job that runs once a month and survives a crash. ``monthly_pytorch.py`` is one.

To adapt it, replace ``months_of``, and bound the rows of your data by a norm that is known without
the data. Contributions are rounded to a grid, so that their sum is exact, and the noise is sampled
exactly.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from accounting import gdp_budget
from accounting.release.clipping import clip_rows, row_norms
from accounting.release.exact_normals import ExactNormals
from streams import Run, Turnstile
from streams.demo.purchases import Purchases, load_purchases, simulated_purchases
from streams.trainers.loop import rounded_rows, row_products

EPSILON, DELTA = 0.1, 1e-5  # of every customer, for the models of all months together
CLIP_NORM = 1.0  # no gradient is longer, because no row of features is
STEPS = 3  # of gradient descent, after every month
MONTHS = 4  # in which a customer can contribute gradients of CLIP_NORM
NOISE = math.sqrt(MONTHS * STEPS) * CLIP_NORM / gdp_budget(EPSILON, DELTA)
GRID = 2.0**-18  # contributions are multiples of it, far finer than the noise
DAYS = 30  # of a month
WEEKS = 13  # for which a customer has examples after a purchase
POPULATION = 5_000  # a public number of customers in a month; their true number is not public
LEARNING_RATE = 5.0


class Refresh(NamedTuple):
    """A month of training; all but the model is confidential.

    Attributes:
        model: the model after the month.
        granted: (steps, customers), the norms that the service granted; 0 if halted.
    """

    model: np.ndarray
    granted: np.ndarray


class Month(NamedTuple):
    """The examples of one month, one per recent customer.

    Attributes:
        users: (n,), customer ids, ascending.
        rows: (n, d), features from before the month; no row is longer than 1.
        bought: (n,), whether the customer bought in the month. Known when the month ends.
    """

    users: np.ndarray
    rows: np.ndarray
    bought: np.ndarray

    def only(self, kept: np.ndarray) -> Month:
        """Return the examples of some customers, selected by a mask (n,)."""
        return Month(self.users[kept], self.rows[kept], self.bought[kept])


def months_of(purchases: Purchases) -> list[Month]:
    """Return the examples of every month but the first.

    The days of the shop are fixed beforehand, so no customer decides how many months there are.
    """
    starts = range(DAYS, purchases.days - DAYS + 1, DAYS)
    return [_month(purchases, start) for start in starts]


def _month(purchases: Purchases, start: int) -> Month:
    recent = (purchases.day < start) & (purchases.day >= start - 7 * WEEKS)
    users, place = np.unique(purchases.customers[recent], return_inverse=True)
    week = (start - 1 - purchases.day[recent]) // 7
    cells, size = place.ravel() * WEEKS + week, len(users) * WEEKS
    times = np.bincount(cells, minlength=size).reshape(-1, WEEKS)
    dollars = np.bincount(place.ravel(), purchases.values[recent], len(users))
    known = (purchases.day < start) & np.isin(purchases.customers, users)
    earlier, day = np.searchsorted(users, purchases.customers[known]), purchases.day[known]
    first = np.full(len(users), start)
    np.minimum.at(first, earlier, day)
    summary = (
        1.0 - 2.0 * (times > 0).argmax(axis=1) / WEEKS,  # recency
        np.log2(times.sum(axis=1)) / 2.0 - 0.5,  # recent purchases
        np.log2(np.bincount(earlier, minlength=len(users))) / 3.0 - 0.5,  # all purchases
        np.log(np.maximum(dollars, 1.0) / 40.0) / 2.0,  # recent dollars
        (start - first) / 365.0 - 0.5,  # age
    )
    rows = np.column_stack([np.ones(len(users)), *(np.clip(one, -1.0, 1.0) for one in summary)])
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    within = (purchases.day >= start) & (purchases.day < start + DAYS)
    bought = np.isin(users, purchases.customers[within])
    # Rounding may leave a row longer than 1, in its last bits.
    return Month(users, rows * (1.0 - 2.0**-50), bought)


def hold_out(months: Sequence[Month], share: float = 0.3) -> tuple[list[Month], list[Month]]:
    """Split by customers; models are tested on the second part, and never trained on it."""
    most = max((int(user) for month in months for user in month.users), default=0)
    drawn = np.random.default_rng(0).random(most + 1) < share
    tested = [drawn[month.users] for month in months]
    return (
        [month.only(~rows) for month, rows in zip(months, tested, strict=True)],
        [month.only(rows) for month, rows in zip(months, tested, strict=True)],
    )


def train(
    run: Run, months: Sequence[Month], generator: np.random.Generator | None
) -> Iterator[Refresh]:
    """Yield the model after each month. Each month starts with the model of the month before.

    Args:
        run: that charges the customers.
        months: the examples of each month.
        generator: of the noise, to repeat a run. None: the noise is from the operating system.
    """
    normals = ExactNormals(generator)
    model = np.zeros(months[0].rows.shape[1])
    for month in months:
        rows = rounded_rows(month.rows)
        granted = np.zeros((STEPS, len(month.users)))
        for step in range(STEPS):
            # These products are exact, so no customer's gradient depends on the other customers.
            residuals = expit(row_products(rows, model[:, np.newaxis])[:, 0]) - month.bought
            gradients = residuals[:, np.newaxis] * rows
            granted[step] = run.charge(
                month.users,
                np.minimum(row_norms(gradients), CLIP_NORM),  # norms are rounded up
                noise_stddev=NOISE,
                clip_norm=CLIP_NORM,
            ).granted
            # Only now is anything released: the sum of the clipped gradients, with noise.
            clipped = np.trunc(clip_rows(gradients, granted[step]) / GRID).astype(np.int64)
            noise = normals.draw(Fraction(NOISE) / Fraction(GRID), len(model))
            gradient = (clipped.sum(axis=0) + noise) * GRID
            model = model - LEARNING_RATE / (CLIP_NORM * POPULATION) * gradient
        yield Refresh(model, granted)


def private_row(number: int, month: Month, model: np.ndarray, granted: np.ndarray) -> str:
    """Return exact numbers about customers: none of them is public.

    Args:
        number: of the month.
        month: the examples of the tested customers.
        model: from before the month.
        granted: (steps, customers), as in ``Refresh``.
    """
    # An AUC needs customers who bought and customers who did not.
    has_auc = 0 < np.count_nonzero(month.bought) < len(month.users)
    quality = f"{roc_auc_score(month.bought, month.rows @ model):.3f}" if has_auc else "-"
    halted = np.count_nonzero(granted[-1] == 0.0)
    return f"{number:5}  {granted.shape[1]:9,}  {halted:6,}  {quality:>5}"


def main() -> None:
    """Train, and print the model after each month."""
    parser = argparse.ArgumentParser(description="Train a model again every month.")
    parser.add_argument("--data", type=Path, help="CDNOW_master.txt; default: a simulated shop")
    parser.add_argument("--kafka", help="address of a service; default: budgets in memory")
    parser.add_argument(
        "--seed", type=int, help="of the noise, to repeat a run; then nothing is private"
    )
    parser.add_argument(
        "--show-private",
        action="store_true",
        help="print exact counts of customers, AUCs and a digest of all decisions instead of the "
        "models; these are private and must not be published",
    )
    options = parser.parse_args()
    purchases = load_purchases(options.data) if options.data else simulated_purchases()
    trained, tested = hold_out(months_of(purchases))
    decisions, model = hashlib.sha256(), np.zeros(trained[0].rows.shape[1])
    if options.show_private:
        print("PRIVATE: do not publish these numbers")
    print("month  customers  halted    AUC" if options.show_private else "month  model")
    with Turnstile(options.kafka) if options.kafka else Turnstile.in_memory() as turnstile:
        dataset = f"shop-{uuid4().hex[:8]}"
        turnstile.create_dataset(
            dataset, measure="gdp", epsilon=EPSILON, delta=DELTA, on_exhaustion="clip"
        )
        run = turnstile.run(dataset, "refreshes")
        generator = None if options.seed is None else np.random.default_rng(options.seed)
        refreshes = train(run, trained, generator)
        for number, (test, refresh) in enumerate(zip(tested, refreshes, strict=True), start=1):
            if options.show_private:
                print(private_row(number, test, model, refresh.granted))
            else:
                print(f"{number:5}  {' '.join(f'{weight:6.3f}' for weight in refresh.model)}")
            model = refresh.model
            decisions.update(refresh.granted.tobytes())
    if options.show_private:
        print(f"all decisions: {decisions.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
