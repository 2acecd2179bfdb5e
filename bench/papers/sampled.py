"""Sampled training of a linear model on the service in this process, for the papers' tables.

Logistic regression on images of length 1, as ``bench.papers.images`` has it. Users are drawn by
Poisson sampling; a user's level is the norm of its gradient when it was drawn last (own coins), or
at the last full pass over the data, as both papers have it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accounting import MEASURES, PoissonGaussian, candidate_orders
from accounting.filters.measure_filters import RenyiFilter
from accounting.release.clipping import norm_products, row_norms
from bench.papers.images import CLASSES, Images
from bench.papers.rows import with_error
from streams import Turnstile
from streams.trainers import Descent, PrivateSteps, PrivateTrainer, noise_for_steps
from streams.trainers.loop import row_products, softmax

DELTA = 1e-5

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """How to train.

    Attributes:
        noise_stddev: absolute, of the sum.
        pass_every: steps between two full passes that set all levels; 0: own coins set them;
            None: no level is ever set, so that everybody is charged the clip norm.
        looks: at how many models, five steps apart, to look at the end. That whose accuracy on the
            training images is best is taken, as by Feldman and Zrnic: a release that is not
            charged, as there.
    """

    epsilon: float
    clip_norm: float
    noise_stddev: float
    sampling_rate: float
    learning_rate: float
    steps: int
    pass_every: int | None
    looks: int = 1


def noise_of(epsilon: float, steps: int, rate: float, clip_norm: float) -> float:
    """The noise with which the clip norm is admitted so often."""
    policy = Turnstile.in_memory(partitions=1).create_dataset(
        "images", measure="renyi", epsilon=epsilon, delta=DELTA
    )
    return clip_norm * noise_for_steps([policy], steps, sampling_rate=rate)


def worst_case_steps(epsilon: float, noise_stddev: float, rate: float, clip_norm: float) -> int:
    """How often the clip norm is admitted at this noise."""
    ladder = candidate_orders(epsilon, DELTA)
    rule = RenyiFilter(ladder.orders, ladder.budgets)
    mechanism = PoissonGaussian(noise_stddev, rate)
    units = MEASURES["renyi"].charge_units(mechanism, [clip_norm], orders=rule.orders)[0]
    return int((np.array(rule.budget_units) // units).max())


def train(images: Images, plan: Plan, seed: int) -> float:
    """Train on a dataset of its own; the accuracy on test images."""
    users = len(images.train)
    service = Turnstile.in_memory(partitions=1)
    service.create_dataset("images", measure="renyi", epsilon=plan.epsilon, delta=DELTA)
    private = PrivateSteps(
        service.run("images", "training"),
        images.users,
        clip_norm=plan.clip_norm,
        noise_multiplier=plan.noise_stddev / plan.clip_norm,
        sampling_rate=plan.sampling_rate,
        expected_batch=plan.sampling_rate * users,
        levels="clip_norm",
        not_private_generator=np.random.default_rng(seed),
    )
    targets = np.eye(CLASSES)[images.train_labels]

    def residuals(model: Floats, chosen: NDArray[np.int64] | slice) -> Floats:
        return softmax(row_products(images.train[chosen], _weights(model))) - targets[chosen]

    def gradients(model: Floats, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        left, right = images.train[positions], residuals(model, positions)
        if plan.pass_every == 0:
            private.roster.observe(positions, norm_products(row_norms(right), row_norms(left)))
        rows = np.einsum("ni,nj->nij", left.astype(np.float32), right.astype(np.float32))
        return rows.reshape(len(left), -1)

    def set_levels(model: Floats) -> None:
        lengths = row_norms(residuals(model, slice(None))), row_norms(images.train)
        private.roster.set_norms(norm_products(*lengths))

    found: list[tuple[float, float]] = []  # on training and on test images
    first_look = plan.steps - 5 * (plan.looks - 1)

    def released(step: int, model: Floats) -> None:
        if step + 1 >= first_look and (step + 1 - first_look) % 5 == 0:
            found.append(
                (
                    _accuracy(model, images.train, images.train_labels),
                    _accuracy(model, images.test, images.test_labels),
                )
            )
        if plan.pass_every and (step + 1) % plan.pass_every == 0:
            set_levels(model)

    model = np.zeros(images.train.shape[1] * CLASSES)
    if plan.pass_every:
        set_levels(model)
    trainer = PrivateTrainer(private, gradients, Descent(plan.learning_rate))
    trainer.run(model, plan.steps, released=released)
    return max(found)[1]


def mean_and_error(values: list[float]) -> str:
    """In percent."""
    return f"{with_error(100.0 * np.array(values))} %"


def _weights(model: Floats) -> Floats:
    return model.reshape(-1, CLASSES)


def _accuracy(model: Floats, rows: Floats, labels: NDArray[np.int64]) -> float:
    return float(np.mean((rows @ _weights(model)).argmax(axis=1) == labels))
