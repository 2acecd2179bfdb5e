"""Sampled private training (DP-SGD) whose users are charged one by one, before every step.

The model, the data and the gradients are those of ``streams.demo.training``, but a step is made of
a Poisson sample: ``streams.trainers`` over a roster. Each user is charged at every step, drawn or
not, at a level that follows the norms of its own gradients, at the order that is best for it.

Three ways to account for the same training, with the same guarantee for everybody:

- Individually. The noise is what a user pays for whose gradient has the clip norm in
  ``worst_case_steps`` steps; shorter ones pay for more. A pace lowers the levels of users who could
  not pay to the end. Where ``unpaced``, it is also tried without: they drop out instead.
- The worst case with the same noise, which must stop.
- The worst case with as many steps, and the noise that they need: DP-SGD as it is usually done.

The worst cases are given the best there is. A number of steps that is fixed beforehand needs no
filter, so theirs are bounded by loss distributions (``accounting.noise_for_epsilon``), which allow
more steps than a filter does, or less noise.

Two clip norms are tried. One holds for any image and clips nothing; it is known without the data.
The other one was tuned on the data for the worst case. With the first, individual accounting is
more accurate than the worst case, but a smaller clip norm for everybody, at the same noise and
without individual accounting, does as well (``docs/results.md``). What individual accounting leaves
is budget: most users have not spent all of theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import (
    PerUserOrderFilter,
    PoissonGaussian,
    best_order,
    candidate_orders,
    cost_table,
    norms_of,
)
from accounting.release.clipping import clip_factors, norm_products, row_norms
from streams.demo.images import CLASSES, Images
from streams.demo.training import CLIP_NORM, Guarantee, probabilities
from streams.sdk.sampling import poisson_sample
from streams.trainers import (
    Descent,
    ExamplesByUser,
    Pace,
    PrivateSteps,
    PrivateTrainer,
    noise_for_steps,
)
from streams.trainers.classifier import logistic_gradients
from streams.trainers.products import rounded_rows
from streams.trainers.rosters import Roster, RosterDecision, TrainingRun

_LEVELS: Final = 100


@dataclass(frozen=True)
class SampledSettings(Guarantee):
    """How to train. Choosing it with the data at hand, as for the demos, is not accounted for.

    Attributes:
        words: how the clip norm was found.
        clip_norm: no gradient of a user counts for more.
        sampling_rate: with which a user is drawn for a step.
        population: a public number of users. Sums are divided by ``sampling_rate`` times this
            number, never by a number that was counted in the data.
        steps: of the training.
        filter_steps: the noise is such that the filter admits a gradient of the clip norm to so
            many; none is admitted to fewer.
        worst_case_steps: how many the worst case makes with that noise, k0.
        worst_case_multiplier: noise over clip norm with which the worst case makes all ``steps``.
        learning_rate: of the mean gradient.
        unpaced: whether to train without a pace as well.
    """

    words: str
    clip_norm: float
    sampling_rate: float
    population: int
    steps: int
    filter_steps: int
    worst_case_steps: int
    worst_case_multiplier: float
    learning_rate: float
    unpaced: bool = False

    @property
    def expected_batch(self) -> float:
        """The denominator of every sum."""
        return self.sampling_rate * self.population

    @property
    def noise_stddev(self) -> float:
        """The noise of the individual accounting."""
        return noise_for_steps(
            self.epsilon,
            self.delta,
            self.filter_steps,
            sampling_rate=self.sampling_rate,
            clip_norm=self.clip_norm,
        )

    @property
    def noise_stddev_equal_steps(self) -> float:
        """The noise of the worst case that makes all ``steps``."""
        return self.worst_case_multiplier * self.clip_norm


_DIGITS: Final = SampledSettings(
    2.0,
    1e-5,
    words="known without the data",
    clip_norm=CLIP_NORM,
    sampling_rate=0.1,
    population=1_438,
    steps=200,
    filter_steps=50,
    worst_case_steps=62,
    worst_case_multiplier=3.005,
    learning_rate=3.0,
    unpaced=True,
)
SAMPLED_DIGITS: Final = (
    _DIGITS,
    replace(
        _DIGITS,
        words="tuned to the data",
        clip_norm=0.8,
        filter_steps=100,
        worst_case_steps=120,
        learning_rate=6.0,
        unpaced=False,
    ),
)
_MNIST: Final = replace(
    _DIGITS,
    epsilon=1.0,
    sampling_rate=0.02,
    population=8_000,
    worst_case_steps=123,
    worst_case_multiplier=1.37,
    learning_rate=6.0,
)
SAMPLED_MNIST: Final = (
    _MNIST,
    replace(
        _MNIST,
        words="tuned to the data",
        clip_norm=0.7,
        filter_steps=100,
        worst_case_steps=164,
        learning_rate=8.0,
        unpaced=False,
    ),
)


@dataclass(frozen=True, eq=False)
class SampledTrace:
    """What an individual accounting came to. All but ``accuracy`` is sensitive.

    Attributes:
        accuracy: (steps,), on the test images after each step.
        admitted: (steps,), how many users were charged and could be drawn.
        spent: (n,), shares of their budgets.
        charge_seconds: spent waiting for decisions.
        seconds: spent in all.
    """

    accuracy: NDArray[np.float64]
    admitted: NDArray[np.int64]
    spent: NDArray[np.float64]
    charge_seconds: float
    seconds: float


@dataclass(frozen=True, eq=False)
class SampledResult:
    """A sampled training beside what worst-case accounting makes of the same guarantee."""

    images: Images
    settings: SampledSettings
    trace: SampledTrace
    unpaced: SampledTrace | None
    same_noise: NDArray[np.float64]
    """Accuracy (k0,) of the worst case that stops."""
    equal_steps: NDArray[np.float64]
    """Accuracy (steps,) of the worst case with more noise."""

    @property
    def accuracy_error(self) -> float:
        """Standard error of an accuracy that comes from so many test images."""
        accuracy = float(self.trace.accuracy[-1])
        return float(np.sqrt(accuracy * (1.0 - accuracy) / len(self.images.test)))


def train_sampled(
    run: TrainingRun,
    images: Images,
    settings: SampledSettings,
    *,
    seed: int,
    paced: bool = True,
    progress: Callable[[int], None] = lambda done: None,
) -> SampledTrace:
    """Train on a run of a fresh dataset with the guarantee of ``settings``, measure renyi."""
    began = perf_counter()
    noise_stddev, rate = settings.noise_stddev, settings.sampling_rate
    watched = _WatchedRun(run, settings, PoissonGaussian(noise_stddev, rate))
    steps = PrivateSteps(
        watched,
        images.users,
        clip_norm=settings.clip_norm,
        noise_stddev=noise_stddev,
        sampling_rate=rate,
        expected_batch=settings.expected_batch,
        levels=_LEVELS,
        pace=Pace(settings.epsilon, settings.delta, settings.steps) if paced else None,
        not_private_generator=np.random.default_rng(seed),
    )
    gradients = logistic_gradients(
        images.train,
        images.train_labels,
        CLASSES,
        ExamplesByUser.one_each(len(images.train)),
    )
    accuracy: list[float] = []

    def released(step: int, model: NDArray[np.float64]) -> None:
        accuracy.append(_accuracy(images, _weights(model)))
        progress(step + 1)

    trainer = PrivateTrainer(steps, gradients, Descent(settings.learning_rate))
    trainer.run(np.zeros(images.train.shape[1] * CLASSES), settings.steps, released=released)
    roster = watched.roster
    return SampledTrace(
        np.array(accuracy),
        np.array(roster.admitted),
        roster.spent / roster.budget,
        roster.seconds,
        perf_counter() - began,
    )


def descend_sampled(
    images: Images, settings: SampledSettings, *, noise_stddev: float, steps: int, seed: int
) -> NDArray[np.float64]:
    """The accuracy (steps,) of DP-SGD: everybody may be drawn, and is clipped to the clip norm."""
    random = np.random.default_rng(seed)
    features, targets = rounded_rows(images.train), np.eye(CLASSES)[images.train_labels]
    everybody = np.ones(len(targets), dtype=np.bool_)
    weights = np.zeros((images.train.shape[1], CLASSES))
    accuracy = np.zeros(steps)
    for step in range(steps):
        batch = poisson_sample(everybody, settings.sampling_rate, not_private_generator=random)
        rows = features[batch]
        residuals = probabilities(rows, weights) - targets[batch]
        norms = norm_products(row_norms(residuals), row_norms(rows))
        factors = clip_factors(norms, np.minimum(norms, settings.clip_norm))
        gradient = rows.T @ (residuals * factors[:, np.newaxis])
        gradient += random.normal(0.0, noise_stddev, gradient.shape)
        weights -= settings.learning_rate / settings.expected_batch * gradient
        accuracy[step] = _accuracy(images, weights)
    return accuracy


def _weights(model: NDArray[np.float64]) -> NDArray[np.float64]:
    return model.reshape(-1, CLASSES)


def _accuracy(images: Images, weights: NDArray[np.float64]) -> float:
    return float(np.mean((images.test @ weights).argmax(axis=1) == images.test_labels))


class _WatchedRun:
    """A run that keeps what was decided, for the figures of the demo."""

    def __init__(
        self, run: TrainingRun, settings: SampledSettings, mechanism: PoissonGaussian
    ) -> None:
        self._run, self._settings, self._mechanism = run, settings, mechanism

    @property
    def dataset(self) -> str:
        return self._run.dataset

    @property
    def name(self) -> str:
        return self._run.name

    @property
    def attempt(self) -> int:
        return self._run.attempt

    @property
    def step(self) -> int:
        return self._run.step

    def check_attempt(self) -> None:
        self._run.check_attempt()

    def enrol(self, users: ArrayLike, *, clip_norm: float, levels: int = _LEVELS) -> _WatchedRoster:
        roster = self._run.enrol(users, clip_norm=clip_norm, levels=levels)
        self.roster = _WatchedRoster(roster, self._settings, self._mechanism, levels)
        return self.roster


class _WatchedRoster:
    """Adds up what every user was charged, as the service does."""

    def __init__(
        self, roster: Roster, guarantee: Guarantee, mechanism: PoissonGaussian, levels: int
    ) -> None:
        ladder = candidate_orders(guarantee.epsilon, guarantee.delta)
        self._rule = PerUserOrderFilter(ladder.orders, ladder.budgets)
        self._units = cost_table("renyi", mechanism, roster.clip_norm, levels, self._rule.orders)
        self._norms = norms_of(np.arange(levels + 1), roster.clip_norm, levels)
        self._roster = roster
        self._order = -1
        self.admitted: list[int] = []
        self.spent: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self.seconds = 0.0

    @property
    def clip_norm(self) -> float:
        return self._roster.clip_norm

    @property
    def budget(self) -> int:
        """Of everybody, in units of the order to which the first step bound them."""
        return int(self._rule.budget_units[self._order])

    def charge(
        self, *, noise_stddev: float, sampling_rate: float = 1.0, norms: ArrayLike | None = None
    ) -> RosterDecision:
        sent = perf_counter()
        decision = self._roster.charge(
            noise_stddev=noise_stddev, sampling_rate=sampling_rate, norms=norms
        )
        self.seconds += perf_counter() - sent
        levels = np.searchsorted(self._norms, decision.clip_norms)
        if not self.admitted:
            # All levels are the same in the first step, and so are their orders.
            self._order = int(best_order(self._units[levels[:1]], self._rule.budget_units)[0])
        self.spent = self.spent + self._units[levels, self._order]
        self.admitted.append(int(np.count_nonzero(decision.admitted)))
        return decision

    def observe(self, positions: ArrayLike, norms: ArrayLike) -> None:
        self._roster.observe(positions, norms)

    def set_norms(self, norms: ArrayLike, positions: ArrayLike | None = None) -> None:
        self._roster.set_norms(norms, positions)
