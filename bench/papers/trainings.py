"""Trainings under three accountings at the same guarantee, by full batches and by samples (DP-SGD).

In full batches, each step

1. charges the norms: the filter grants each user min(norm, what the budget has left);
2. adds up the gradients, clipped to the granted norms, and adds noise;
3. moves the weights.

The accountings make the same number of steps:

- worst case: every user is charged CLIP_NORM in every step, and the noise pays for all steps;
- individual: the noise pays for only ``full_steps`` steps at CLIP_NORM, and the service charges
  each user's own norms until that user's budget is exhausted;
- smaller clip norm: the noise of individual accounting, and a clip norm for all users at which this
  noise pays for all steps: CLIP_NORM sqrt(full_steps / steps). No user is charged individually. It
  follows from public numbers. Everything else is the same, including the learning rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from accounting import gdp_budget
from accounting.release.clipping import clip_factors, norm_products, row_norms
from bench.papers.dpsgd import Sampled, train_individually, train_worst_case
from bench.papers.images import CLASSES, CLIP_NORM, Images
from streams import Turnstile
from streams.records import Measure
from streams.sdk.run import Run
from streams.trainers.loop import rounded_rows, row_products, softmax

Way: TypeAlias = Literal["worst case", "individual", "smaller clip norm"]
WAYS: Final[tuple[Way, ...]] = ("worst case", "individual", "smaller clip norm")


@dataclass(frozen=True)
class FullBatches:
    """How to train. They are chosen with a look at the data, which is not charged.

    Attributes:
        epsilon: with delta, the guarantee of every user.
        delta: see epsilon.
        population: a public number of users, the denominator of the mean gradient. The number of
            users in the data is not public.
        full_steps: number of steps at CLIP_NORM that the noise of individual accounting pays for.
        steps: number of steps.
        learning_rate: of the mean gradient.
    """

    epsilon: float
    delta: float
    population: int
    full_steps: int
    steps: int
    learning_rate: float

    def clip_norm(self, way: Way) -> float:
        """Return the largest norm of a user's gradient."""
        shorter = math.sqrt(self.full_steps / self.steps) if way == "smaller clip norm" else 1.0
        return shorter * CLIP_NORM

    def noise_stddev(self, way: Way) -> float:
        """Return the standard deviation of the noise in every step."""
        steps = self.steps if way == "worst case" else self.full_steps
        return math.sqrt(steps) * CLIP_NORM / gdp_budget(self.epsilon, self.delta)


DIGITS: Final = FullBatches(
    2.0, 1e-5, population=1_438, full_steps=30, steps=90, learning_rate=10.0
)
MNIST = replace(DIGITS, epsilon=1.0, population=8_000, full_steps=30, steps=75, learning_rate=20.0)


def full_batches(images: Images, settings: FullBatches, seeds: int) -> np.ndarray:
    """Return the accuracy of each of the WAYS, all images in all steps, (seeds, 3)."""
    return np.array(
        [[_descend(images, settings, way, seed) for way in WAYS] for seed in range(1, seeds + 1)]
    )


def _descend(images: Images, settings: FullBatches, way: Way, seed: int) -> float:
    """Train once, and return the accuracy on the test images."""
    run = _new_run("gdp", settings, on_exhaustion="clip") if way == "individual" else None
    noise, noise_stddev = np.random.default_rng(seed), settings.noise_stddev(way)
    clip_norm, rows = settings.clip_norm(way), rounded_rows(images.train)
    lengths, targets = row_norms(rows), np.eye(CLASSES)[images.train_labels]
    weights = np.zeros((rows.shape[1], CLASSES))
    for _ in range(settings.steps):
        residuals = softmax(row_products(rows, weights)) - targets
        norms = norm_products(row_norms(residuals), lengths)
        granted = np.minimum(norms, clip_norm)
        if run is not None:
            # Step 1.
            granted = run.charge(
                images.users, granted, noise_stddev=noise_stddev, clip_norm=clip_norm
            ).granted
        # Step 2.
        gradient = rows.T @ (residuals * clip_factors(norms, granted)[:, np.newaxis])
        gradient += noise.normal(0.0, noise_stddev, gradient.shape)
        # Step 3.
        weights -= settings.learning_rate / settings.population * gradient
    return images.accuracy(weights)


def samples(images: Images, settings: Sampled, seeds: int) -> np.ndarray:
    """Return the accuracy of each of the WAYS, on Poisson samples, (seeds, 3)."""
    return np.array([_sampled(images, settings, seed) for seed in range(1, seeds + 1)])


def _sampled(images: Images, settings: Sampled, seed: int) -> list[float]:
    run = _new_run("renyi", settings)
    same, multiplier = settings.noise_stddev, settings.worst_case_multiplier
    baselines = ((settings.clip_norm, multiplier * settings.clip_norm), (same / multiplier, same))
    worst, smaller = (
        train_worst_case(images, settings, clip_norm=clip_norm, noise_stddev=noise, seed=seed)
        for clip_norm, noise in baselines
    )
    return [worst, train_individually(run, images, settings, seed=seed), smaller]


def _new_run(measure: Measure, settings: FullBatches | Sampled, **policy: Any) -> Run:
    service = Turnstile.in_memory(partitions=1)
    service.create_dataset(
        "images", measure=measure, epsilon=settings.epsilon, delta=settings.delta, **policy
    )
    return service.run("images", "training")
