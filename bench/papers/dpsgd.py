"""DP-SGD (Poisson samples) of a linear model: individual accounting and the worst case.

The model, the images and the gradients are those of ``bench.papers.images``. Individual
accounting charges each user at every step, drawn or not, at a level that follows the norms of the
user's own gradients, and at most at the norm that lasts until the end
(``streams.trainers.planning``). The worst case makes a number of steps that is fixed beforehand.
Loss distributions bound it with less noise than a filter needs (``accounting.noise_for_epsilon``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from accounting.release.clipping import clip_factors, norm_products, row_norms
from bench.papers.images import CLASSES, CLIP_NORM, Images
from streams import Turnstile
from streams.sdk.roster_steps import poisson_sample
from streams.sdk.run import Run
from streams.trainers import (
    Descent,
    ExamplesByUser,
    PrivateSteps,
    PrivateTrainer,
    noise_for_steps,
)
from streams.trainers.classifier import logistic_gradients
from streams.trainers.loop import rounded_rows, row_products, softmax


@dataclass(frozen=True)
class Sampled:
    """How to train.

    Attributes:
        epsilon: with delta, the guarantee of every user.
        delta: see epsilon.
        clip_norm: the largest norm of a user's gradient.
        sampling_rate: the probability with which a user is drawn for a step.
        population: a public number of users, for the denominator of every sum.
        steps: number of steps.
        filter_steps: the number of gradients of the clip norm that a user's budget pays for at the
            noise of individual accounting.
        worst_case_multiplier: noise over clip norm at which the worst case makes all ``steps``.
        learning_rate: of the mean gradient.
    """

    epsilon: float
    delta: float
    clip_norm: float
    sampling_rate: float
    population: int
    steps: int
    filter_steps: int
    worst_case_multiplier: float
    learning_rate: float

    @property
    def noise_stddev(self) -> float:
        """The noise of individual accounting."""
        return self.clip_norm * self._multiplier(self.filter_steps)

    @property
    def lasting_norm(self) -> float:
        """The norm that lasts for all steps at this noise."""
        return self.noise_stddev / self._multiplier(self.steps)

    def _multiplier(self, steps: int) -> float:
        policy = Turnstile.in_memory(partitions=1).create_dataset(
            "images", measure="renyi", epsilon=self.epsilon, delta=self.delta
        )
        return noise_for_steps([policy], steps, sampling_rate=self.sampling_rate)


DIGITS = Sampled(2.0, 1e-5, CLIP_NORM, 0.1, 1_438, 200, 50, 3.005, 3.0)
DIGITS_TUNED = replace(DIGITS, clip_norm=0.8, filter_steps=100, learning_rate=6.0)
MNIST = replace(
    DIGITS,
    epsilon=1.0,
    sampling_rate=0.02,
    population=8_000,
    worst_case_multiplier=1.37,
    learning_rate=6.0,
)


def train_individually(run: Run, images: Images, settings: Sampled, *, seed: int) -> float:
    """Train on a run of a fresh renyi dataset; return the accuracy on the test images."""
    lasting = settings.lasting_norm
    steps = PrivateSteps(
        run,
        images.users,
        clip_norm=lasting,
        noise_multiplier=settings.noise_stddev / lasting,
        sampling_rate=settings.sampling_rate,
        expected_batch=settings.sampling_rate * settings.population,
        steps=settings.steps,
        not_private_generator=np.random.default_rng(seed),
    )
    examples = ExamplesByUser.covering(len(images.train))
    gradients = logistic_gradients(images.train, images.train_labels, CLASSES, examples)
    trainer = PrivateTrainer(steps, gradients, Descent(settings.learning_rate))
    start = np.zeros(images.train.shape[1] * CLASSES)
    return images.accuracy(trainer.run(start, settings.steps).reshape(-1, CLASSES))


def train_worst_case(
    images: Images, settings: Sampled, *, clip_norm: float, noise_stddev: float, seed: int
) -> float:
    """Train without a service; return the accuracy on the test images."""
    random = np.random.default_rng(seed)
    features, targets = rounded_rows(images.train), np.eye(CLASSES)[images.train_labels]
    weights = np.zeros((images.train.shape[1], CLASSES))
    everyone = np.ones(len(targets), dtype=np.bool_)
    for _ in range(settings.steps):
        batch = poisson_sample(everyone, settings.sampling_rate, not_private_generator=random)
        rows = features[batch]
        residuals = softmax(row_products(rows, weights)) - targets[batch]
        norms = norm_products(row_norms(residuals), row_norms(rows))
        factors = clip_factors(norms, np.minimum(norms, clip_norm))
        gradient = rows.T @ (residuals * factors[:, np.newaxis])
        gradient += random.normal(0.0, noise_stddev, gradient.shape)
        mean = gradient / (settings.sampling_rate * settings.population)
        weights -= settings.learning_rate * mean
    return images.accuracy(weights)
