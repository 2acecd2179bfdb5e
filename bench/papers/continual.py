"""Training again after every period, on customers who come and go: the table of docs/results.md.

The model is logistic regression: who of the recent customers buys in the next period? After every
period, the model of the last one makes a few steps of full-batch gradient descent on the period's
examples, with Gaussian noise. All models together give each customer one guarantee, charged as
Gaussian DP. Before the steps, the model predicts the period for customers who are never trained on;
the figure is the mean of the periods' AUC (the area under the ROC curve).

Four accountings have the same budget mu:

- worst case: every customer is charged the largest norm of any gradient, 1, in every period;
- smaller clip norm: the same, with gradients clipped to a norm that is tuned;
- contribution bounding: a customer takes part in the first few periods with an example;
- individual: a customer is charged the norms of that customer's own gradients until the budget is
  spent. The last one is clipped to what is left.

Each has its best parameters on one grid, chosen with other seeds than those that are reported. The
choice looks at the data and is not charged. A seed determines the customers held out and the noise;
at one seed, all accountings have the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np
from scipy.special import expit

from accounting import gdp_budget
from bench.papers.periods import Features, TrainingPeriod, split_periods
from streams import Turnstile
from streams.demo.purchases import load_purchases

Accounting: TypeAlias = Literal[
    "worst case", "smaller clip norm", "contribution bounding", "individual"
]
ACCOUNTINGS: Final[tuple[Accounting, ...]] = (
    "worst case",
    "smaller clip norm",
    "contribution bounding",
    "individual",
)
DELTA: Final = 1e-5
EPSILONS: Final = (0.05, 0.1, 0.3, 1.0)
HELD_OUT: Final = 0.3
TUNING_SEEDS: Final = range(1_000, 1_005)
HEAVY: Final = 0.9

_POPULATION: Final = 5_000  # a public number of examples per period, the divisor of sums


@dataclass(frozen=True)
class Setting:
    """How often the model is trained, and the grid of the parameters.

    Attributes:
        name: of the setting.
        days: the length of a period.
        features: what the model sees of a customer.
        steps: gradient steps after a period.
        active: periods in which a customer can contribute the clip norm. The grid has the number of
            all periods as well.
        learning_rates: of the sum of gradients divided by the clip norm and a public number.
    """

    name: str
    days: int
    features: Features
    steps: int
    active: tuple[int, ...]
    learning_rates: tuple[float, ...]


SETTINGS: Final = (
    Setting("monthly", 30, "summary", 3, (2, 4, 8), (0.5, 1.5, 5.0, 15.0, 50.0)),
    Setting("weekly", 7, "summary", 1, (4, 8, 16, 32), (0.05, 0.15, 0.5, 1.5, 5.0, 15.0)),
    Setting("monthly, raw history", 30, "history", 3, (2, 4, 8), (0.05, 0.15, 0.5, 1.5, 5.0)),
)
CLIP_NORMS: Final = (1.0, 0.5, 0.25)
NOISELESS_STEPS, NOISELESS_RATES = 50, (5.0, 15.0, 50.0)


@dataclass(frozen=True)
class Plan:
    """An accounting with its parameters; see ``Setting``."""

    accounting: Accounting
    mu: float
    clip_norm: float
    active: int
    steps: int
    learning_rate: float

    @property
    def charged_steps(self) -> int:
        """The number of steps at the clip norm that the noise pays for."""
        return self.active * self.steps

    @property
    def noise_stddev(self) -> float:
        """The standard deviation of the noise in every step."""
        return math.sqrt(self.charged_steps) * self.clip_norm / self.mu


Granting: TypeAlias = Callable[[TrainingPeriod, np.ndarray, np.ndarray], np.ndarray]
"""Takes a period, who is trained on, and clipped norms, (n, seeds); returns the granted norms."""


def in_floats(plan: Plan, customers: int, seeds: int) -> Granting:
    """Decide as the accounting does, without a service, which is exact but slower."""
    spent = np.zeros((customers, seeds))

    def grant(period: TrainingPeriod, trained: np.ndarray, norms: np.ndarray) -> np.ndarray:
        if plan.accounting in ACCOUNTINGS[:2]:
            return norms
        before = spent[period.users]
        if plan.accounting == "contribution bounding":
            spent[period.users] += 1.0
            return np.where(before < plan.charged_steps, norms, 0.0)
        left = np.maximum(plan.charged_steps * plan.clip_norm**2 - before, 0.0)
        granted = np.where(trained, np.minimum(norms, np.sqrt(left)), 0.0)
        spent[period.users] += granted**2
        return granted

    return grant


def by_service(plan: Plan, epsilon: float, seeds: int) -> Granting:
    """Charge the individual accounting to datasets of a service in memory, one per seed."""
    service = Turnstile.in_memory(partitions=1)
    runs = []
    for seed in range(seeds):
        service.create_dataset(
            f"shop-{seed}", measure="gdp", epsilon=epsilon, delta=DELTA, on_exhaustion="clip"
        )
        runs.append(service.run(f"shop-{seed}", "refreshes"))

    def grant(period: TrainingPeriod, trained: np.ndarray, norms: np.ndarray) -> np.ndarray:
        granted = np.zeros_like(norms)
        for seed, run in enumerate(runs):
            rows = trained[:, seed]
            granted[rows, seed] = run.charge(
                period.users[rows],
                norms[rows, seed],
                noise_stddev=plan.noise_stddev,
                clip_norm=plan.clip_norm,
            ).granted
        return granted

    return grant


def train(
    periods: Sequence[TrainingPeriod],
    held_out: np.ndarray,
    plan: Plan,
    seeds: Sequence[int],
    grant: Granting,
) -> list[np.ndarray]:
    """Train once per seed, and return each period's predictions from before it, (n, seeds)."""
    noise = [np.random.default_rng([seed, 2]) for seed in seeds]
    model = np.zeros((periods[0].rows.shape[1], len(seeds)))
    rate = plan.learning_rate / (plan.clip_norm * _POPULATION)
    predictions = []
    for period in periods:
        scores = period.rows @ model
        predictions.append(scores)
        trained, lengths = ~held_out[period.users], np.linalg.norm(period.rows, axis=1)
        for step in range(plan.steps):
            residuals = expit(scores if step == 0 else period.rows @ model)
            residuals -= period.bought[:, np.newaxis]
            norms = np.minimum(np.abs(residuals) * lengths[:, np.newaxis], 1.0)
            granted = grant(period, trained, np.minimum(norms, plan.clip_norm))
            clipped = np.copysign(granted * trained / lengths[:, np.newaxis], residuals)
            drawn = [one.normal(0.0, plan.noise_stddev, len(model)) for one in noise]
            model = model - rate * (period.rows.T @ clipped + np.column_stack(drawn))
    return predictions


def held_out_customers(customers: int, seeds: Sequence[int]) -> np.ndarray:
    """Return who is never trained on, (customers, seeds)."""
    draws = (np.random.default_rng([seed, 1]).random(customers) for seed in seeds)
    return np.column_stack([draw < HELD_OUT for draw in draws])


def heavy_customers(periods: Sequence[TrainingPeriod], customers: int) -> np.ndarray:
    """Return who is in the tenth of customers with the most examples, (customers,)."""
    active = np.bincount(np.concatenate([period.users for period in periods]), minlength=customers)
    return active >= np.quantile(active[active > 0], HEAVY)


def auc_by_period(
    periods: Sequence[TrainingPeriod], predictions: Sequence[np.ndarray], counted: np.ndarray
) -> np.ndarray:
    """Return the AUC in percent, (periods - 1, seeds), over counted customers, (customers, seeds).

    The first period is left out, because there was no model before it.
    """
    found = [
        [auc(scores[rows, seed], period.bought[rows]) for seed, rows in enumerate(chosen.T)]
        for period, scores in zip(periods[1:], predictions[1:], strict=True)
        for chosen in [counted[period.users]]
    ]
    return 100.0 * np.array(found)


def auc(scores: np.ndarray, bought: np.ndarray) -> float:
    """Return how often a buyer has a higher score than a customer who does not buy; ties half."""
    others, buyers = np.sort(scores[~bought]), scores[bought]
    ranks = [np.searchsorted(others, buyers, side) for side in ("left", "right")]
    return float(np.mean(ranks)) / len(others)


@dataclass(frozen=True, eq=False)
class Measured:
    """The AUC of each period but the first in percent, (periods - 1, seeds).

    Attributes:
        everyone: over all customers who are held out.
        heavy: over the tenth of them with the most examples.
    """

    everyone: np.ndarray
    heavy: np.ndarray


class Benchmark:
    """One setting on the purchase log."""

    def __init__(self, file: Path, setting: Setting) -> None:
        purchases = load_purchases(file)
        self.setting, self.purchases = setting, purchases
        self.periods = split_periods(purchases, setting.days, setting.features)
        self.customers = int(purchases.customers.max()) + 1
        self.heavy = heavy_customers(self.periods, self.customers)

    def plans(self, accounting: Accounting, epsilon: float) -> Iterator[Plan]:
        """Yield the grid of an accounting."""
        setting, every = self.setting, len(self.periods)
        clip_norms = CLIP_NORMS[:1] if accounting == "worst case" else CLIP_NORMS
        active = () if accounting in ACCOUNTINGS[:2] else setting.active
        mu = gdp_budget(epsilon, DELTA)
        for point in product(clip_norms, (*active, every), setting.learning_rates):
            clip_norm, periods, rate = point
            yield Plan(accounting, mu, clip_norm, periods, setting.steps, rate)

    def best_plan(self, accounting: Accounting, epsilon: float) -> Plan:
        """Return the plan with the best AUC at the tuning seeds."""
        held_out = held_out_customers(self.customers, TUNING_SEEDS)

        def quality(plan: Plan) -> float:
            grant = in_floats(plan, self.customers, len(TUNING_SEEDS))
            predictions = train(self.periods, held_out, plan, TUNING_SEEDS, grant)
            return float(auc_by_period(self.periods, predictions, held_out).mean())

        return max(self.plans(accounting, epsilon), key=quality)

    def measure(self, plan: Plan, epsilon: float, seeds: Sequence[int]) -> Measured:
        """Train under a plan; the individual accounting is that of the service."""
        held_out = held_out_customers(self.customers, seeds)
        if plan.accounting == "individual":
            grant = by_service(plan, epsilon, len(seeds))
        else:
            grant = in_floats(plan, self.customers, len(seeds))
        predictions = train(self.periods, held_out, plan, seeds, grant)
        return self.score(predictions, held_out)

    def score(self, predictions: Sequence[np.ndarray], held_out: np.ndarray) -> Measured:
        """Return the AUC of predictions, for all customers who are held out and for heavy ones."""
        heavy = held_out & self.heavy[:, np.newaxis]
        return Measured(
            auc_by_period(self.periods, predictions, held_out),
            auc_by_period(self.periods, predictions, heavy),
        )

    def without_training(self, seeds: Sequence[int]) -> Measured:
        """Score customers by their number of days with a purchase so far."""
        bought = self.purchases
        scores = [
            np.bincount(bought.customers[bought.day < start], minlength=self.customers)
            for start in range(self.setting.days, bought.days, self.setting.days)
        ]
        predictions = [
            np.repeat(score[period.users, np.newaxis], len(seeds), axis=1)
            for period, score in zip(self.periods, scores, strict=False)
        ]
        return self.score(predictions, held_out_customers(self.customers, seeds))

    def without_noise(self, seeds: Sequence[int]) -> Measured:
        """Train without privacy, at more steps and the best learning rate."""
        held_out = held_out_customers(self.customers, seeds)
        measured = []
        for rate in NOISELESS_RATES:
            plan = Plan("worst case", math.inf, 1.0, 1, NOISELESS_STEPS, rate)
            grant = in_floats(plan, self.customers, len(seeds))
            predictions = train(self.periods, held_out, plan, seeds, grant)
            measured.append(self.score(predictions, held_out))
        return max(measured, key=lambda one: float(one.everyone.mean()))
