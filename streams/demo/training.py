"""Private gradient descent with individual filtering (Feldman and Zrnic, Algorithm 7).

Multinomial logistic regression on all images at every step. The gradient of image i is the outer
product of its features x and its residual r = p - y, so its norm is |r| |x| and no gradient is
ever written out. Each step:

1. The norms are charged; the filter grants min(norm, what the user has left).
2. The gradients, clipped to the granted norms, are summed, and noise is added once, to the sum.
3. The weights move; the test images, which are not users, are classified.

No gradient is longer than C = sqrt(2) FEATURE_NORM, so C, the clip norm, is known before the data
and clips nothing. Worst-case accounting (Algorithm 6) charges C to everyone in every step. It can
live with that in two ways:

- It stops early: with the same noise after k0 = floor(2 s^2 rho / C^2) steps. Until then the filter
  cannot have stopped anyone: both trainings are the same, number by number, and the accuracy of the
  worst case is the accuracy after k0 steps.
- It makes as many steps, with noise raised so that all of them fit.

Not compared is a smaller clip norm for everybody. At C sqrt(k0 / steps), which follows from public
numbers, the same noise pays for all steps of every user without individual accounting, and the
accuracy is at least as high (``docs/results.md``; FZ section 5.1 finds the same).

The noise of a demo comes from a seed, so that its figures can be reproduced. A noise that can be
reproduced hides nothing: a trainer on private data draws it from the operating system, as
``accounting.release.ExactNoise`` does. The demo also adds up in floating point, so that the last
bits of its sums depend on all users; ``streams.trainers`` adds up exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accounting import noise_for_norm_budget, zcdp_budget, zcdp_cost, zcdp_to_epsilon
from accounting.costs.mechanisms import Gaussian
from accounting.release.clipping import clip_factors, norm_products, row_norms
from streams.demo.images import CLASSES, FEATURE_NORM, Images
from streams.sdk.run import Run
from streams.trainers.products import rounded_rows, row_products, softmax

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the steps done and the steps in all."""

CLIP_NORM: Final = math.sqrt(2.0) * FEATURE_NORM
"""A residual is the difference of two probability vectors: its norm is at most sqrt(2)."""


@dataclass(frozen=True)
class Guarantee:
    """What every user is promised."""

    epsilon: float
    delta: float

    @property
    def rho(self) -> float:
        """The budget of every user, in zCDP."""
        return zcdp_budget(self.epsilon, self.delta)


@dataclass(frozen=True)
class Settings(Guarantee):
    """How to train. Choosing it with the data at hand, as for the demos, is not accounted for.

    Attributes:
        population: a public number of users, the denominator of the mean gradient. It is not
            counted in the data: a release would then reveal how many users there are.
        worst_case_steps: the noise is such that worst-case accounting allows this many steps.
        steps: how many are made with individual accounting.
        learning_rate: of the mean gradient.
    """

    population: int
    worst_case_steps: int
    steps: int
    learning_rate: float

    @property
    def noise_stddev(self) -> float:
        """The noise at which the budget lasts for ``worst_case_steps`` gradients of norm C."""
        return noise_for_norm_budget(self.worst_case_steps * CLIP_NORM**2, self.rho)

    @property
    def noise_stddev_equal_steps(self) -> float:
        """The noise at which it lasts for all ``steps``."""
        return noise_for_norm_budget(self.steps * CLIP_NORM**2, self.rho)


DIGITS: Final = Settings(
    2.0, 1e-5, population=1_438, worst_case_steps=30, steps=90, learning_rate=10.0
)
MNIST: Final = Settings(
    1.0, 1e-5, population=8_000, worst_case_steps=30, steps=75, learning_rate=20.0
)


@dataclass(frozen=True, eq=False)
class Trace:
    """What happened in each step, and to each user. All but ``accuracy`` is sensitive.

    Attributes:
        accuracy: (steps,), on the test images after each step.
        admitted: (steps,), how many users took part.
        halted: (steps,), how many were left out.
        active: (steps,), how many had something left after the step.
        spent: (n,), zCDP that each user spent.
        charge_seconds: spent waiting for decisions.
        seconds: spent in all.
    """

    accuracy: NDArray[np.float64]
    admitted: NDArray[np.int64]
    halted: NDArray[np.int64]
    active: NDArray[np.int64]
    spent: NDArray[np.float64]
    charge_seconds: float
    seconds: float


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """A training beside what worst-case accounting makes of the same budget."""

    images: Images
    settings: Settings
    trace: Trace
    k0: int
    equal_steps: NDArray[np.float64]
    """Accuracy (steps,) of the worst case that makes as many steps, with more noise."""

    @property
    def accuracy(self) -> float:
        """Of the individual accounting, after its last step."""
        return float(self.trace.accuracy[-1])

    @property
    def accuracy_worst_case(self) -> float:
        """Of the worst-case accounting with the same noise: it stops after k0 steps."""
        return float(self.trace.accuracy[self.k0 - 1])

    @property
    def accuracy_equal_steps(self) -> float:
        """Of the worst-case accounting with more noise, after as many steps."""
        return float(self.equal_steps[-1])

    @property
    def accuracy_error(self) -> float:
        """Standard error of an accuracy that comes from so many test images."""
        return math.sqrt(self.accuracy * (1.0 - self.accuracy) / len(self.images.test))

    @property
    def epsilon_of_all_steps(self) -> float:
        """What worst-case accounting would claim after all the steps with this noise."""
        settings = self.settings
        rho = settings.steps * CLIP_NORM**2 / (2.0 * settings.noise_stddev**2)
        return float(zcdp_to_epsilon(rho, settings.delta))


def worst_case_steps(norm: float, noise_stddev: float, rho: float) -> int:
    """k0: how many steps of this norm the budget rho certainly pays for."""
    return math.floor(2.0 * noise_stddev**2 * rho / norm**2)


def train_privately(
    run: Run, images: Images, settings: Settings, *, seed: int, progress: Progress
) -> TrainingResult:
    """Train on a run of a fresh dataset with budget ``settings.rho`` that clips on exhaustion."""
    total = 2 * settings.steps
    trace = descend(
        images,
        settings,
        noise_stddev=settings.noise_stddev,
        noise=np.random.default_rng(seed),
        run=run,
        progress=lambda done: progress(done, total),
    )
    equal_steps = descend(
        images,
        settings,
        noise_stddev=settings.noise_stddev_equal_steps,
        noise=np.random.default_rng(seed),
        progress=lambda done: progress(settings.steps + done, total),
    )
    k0 = worst_case_steps(CLIP_NORM, settings.noise_stddev, settings.rho)
    return TrainingResult(images, settings, trace, k0, equal_steps.accuracy)


def descend(
    images: Images,
    settings: Settings,
    *,
    noise_stddev: float,
    noise: np.random.Generator,
    run: Run | None = None,
    clip_norm: float = CLIP_NORM,
    progress: Callable[[int], None] = lambda done: None,
) -> Trace:
    """Descend on what the run grants; without a run, everyone takes part in every step."""
    began = perf_counter()
    users, n = images.users, len(images.train)
    rows = rounded_rows(images.train)
    targets = np.eye(CLASSES)[images.train_labels]
    lengths = row_norms(rows)
    weights = np.zeros((rows.shape[1], CLASSES))
    accuracy = np.zeros(settings.steps)
    admitted, halted, active = np.zeros((3, settings.steps), dtype=np.int64)
    granted_squares = np.zeros(n)
    charging = 0.0
    for step in range(settings.steps):
        residuals = probabilities(rows, weights) - targets
        norms = norm_products(row_norms(residuals), lengths)
        granted = asked = np.minimum(norms, clip_norm)
        if run is not None:
            # Step 1.
            sent = perf_counter()
            decision = run.charge(users, asked, noise_stddev=noise_stddev, clip_norm=clip_norm)
            charging += perf_counter() - sent
            granted = decision.granted
            admitted[step] = np.count_nonzero(decision.admitted)
            halted[step] = n - admitted[step]
            active[step] = n - np.count_nonzero(decision.exhausted)
        granted_squares += granted**2
        # Step 2.
        factors = clip_factors(norms, granted)
        gradient = rows.T @ (residuals * factors[:, None])
        gradient += noise.normal(0.0, noise_stddev, gradient.shape)
        # Step 3.
        weights -= settings.learning_rate / settings.population * gradient
        predicted = (images.test @ weights).argmax(axis=1)
        accuracy[step] = np.mean(predicted == images.test_labels)
        progress(step + 1)
    spent = zcdp_cost(Gaussian(noise_stddev), np.sqrt(granted_squares))
    return Trace(accuracy, admitted, halted, active, spent, charging, perf_counter() - began)


def probabilities(rows: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the softmax of each row, (n, classes).

    No row depends on the others if they come from ``streams.trainers.products.rounded_rows``.
    """
    return softmax(row_products(rows, weights))
