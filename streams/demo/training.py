"""Train a linear model by private gradient descent, under three accountings (full batches).

The model is multinomial logistic regression (Feldman and Zrnic 2021, section 5). The gradient of
an image is the outer product of its features x and its residual r = p - y; its norm is |r| |x|.
Each step:

1. The norms are charged. The filter grants each user min(norm, what the budget has left).
2. The gradients, clipped to the granted norms, are added up, and noise is added to the sum.
3. The weights move, and the test images, which are not users, are classified.

No gradient is longer than CLIP_NORM, which is known without the data. Three accountings make the
same number of steps and give each user the same (epsilon, delta):

- worst case: every user is charged CLIP_NORM in every step, and the noise pays for all steps;
- individual: the noise pays for only ``full_steps`` steps at CLIP_NORM, and the service charges
  each user's own norms until that user's budget is exhausted;
- smaller clip norm: the noise of individual accounting, and a clip norm for all users at which this
  noise pays for all steps: CLIP_NORM sqrt(full_steps / steps). Users are not charged individually.

Within one tuned training, individual accounting gains nothing over the smaller clip norm.

The demo's noise comes from a seed, and its sums are rounded. For private data, use
``streams.trainers``, which draws noise from the operating system and adds up exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accounting import gdp_budget
from accounting.release.clipping import clip_factors, norm_products, row_norms
from streams.demo.errors import demo_extra
from streams.demo.results import Progress, charged_by
from streams.sdk.client import Turnstile
from streams.sdk.run import Run
from streams.trainers.loop import rounded_rows, row_products, softmax

CLASSES: Final = 10

_TEST_SHARE: Final = 0.2
_SPLIT_SEED: Final = 20210913
_BIAS: Final = 0.3

FEATURE_NORM: Final = math.sqrt(1.0 + _BIAS**2)
"""The largest L2 norm of a row of features."""
CLIP_NORM: Final = math.sqrt(2.0) * FEATURE_NORM
"""A residual is the difference of two probability vectors: its norm is at most sqrt(2)."""

Way: TypeAlias = Literal["worst case", "individual", "smaller clip norm"]
WAYS: Final[tuple[Way, ...]] = ("worst case", "individual", "smaller clip norm")


@dataclass(frozen=True)
class TrainingSettings:
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


DIGITS: Final = TrainingSettings(
    2.0, 1e-5, population=1_438, full_steps=30, steps=90, learning_rate=10.0
)


@dataclass(frozen=True, eq=False)
class Trace:
    """One training.

    Attributes:
        accuracy: (steps,), on the test images after each step.
        admitted: number of contributions, over all steps. Sensitive.
    """

    accuracy: NDArray[np.float64]
    admitted: int


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """Trainings with several noise seeds.

    Attributes:
        images: the data.
        settings: how to train.
        accuracy: for each of WAYS (seeds, steps), on the test images after each step.
        charged: the work of the service under individual accounting, for each seed.
    """

    images: Images
    settings: TrainingSettings
    accuracy: dict[Way, NDArray[np.float64]]
    charged: list[dict[str, Any]]

    def final(self, way: Way) -> NDArray[np.float64]:
        """Return the accuracies after the last step, (seeds,)."""
        return self.accuracy[way][:, -1]


def train_all_ways(
    turnstile: Turnstile,
    datasets: Sequence[str],
    images: Images,
    settings: TrainingSettings,
    *,
    progress: Progress = lambda: None,
) -> TrainingResult:
    """Train in each of the WAYS with the noise seeds 1, 2, ...

    Args:
        turnstile: the service, which is charged under individual accounting.
        datasets: the names of the datasets to create, one for each seed.
        images: the data.
        settings: how to train.
        progress: called after each step on the service.
    """
    accuracy: dict[Way, list[NDArray[np.float64]]] = {way: [] for way in WAYS}
    charged = []
    for seed, dataset in enumerate(datasets, start=1):
        turnstile.create_dataset(
            dataset,
            measure="gdp",
            epsilon=settings.epsilon,
            delta=settings.delta,
            on_exhaustion="clip",
            user_ids="integer",
        )
        began = perf_counter()
        run = turnstile.run(dataset, "training")
        trace = descend(images, settings, "individual", seed=seed, run=run, progress=progress)
        seconds = perf_counter() - began
        halted = settings.steps * len(images.train) - trace.admitted
        charged.append(
            charged_by(turnstile, dataset, settings.steps, trace.admitted, halted, seconds)
        )
        accuracy["individual"].append(trace.accuracy)
        for way in ("worst case", "smaller clip norm"):
            accuracy[way].append(descend(images, settings, way, seed=seed).accuracy)
    curves = {way: np.array(found) for way, found in accuracy.items()}
    return TrainingResult(images, settings, curves, charged)


def descend(
    images: Images,
    settings: TrainingSettings,
    way: Way,
    *,
    seed: int,
    run: Run | None = None,
    progress: Progress = lambda: None,
) -> Trace:
    """Train once; with a run, users contribute what it grants them."""
    noise, noise_stddev = np.random.default_rng(seed), settings.noise_stddev(way)
    clip_norm, rows = settings.clip_norm(way), rounded_rows(images.train)
    lengths, targets = row_norms(rows), np.eye(CLASSES)[images.train_labels]
    weights = np.zeros((rows.shape[1], CLASSES))
    accuracy, admitted = np.zeros(settings.steps), 0
    for step in range(settings.steps):
        residuals = softmax(row_products(rows, weights)) - targets
        norms = norm_products(row_norms(residuals), lengths)
        granted = np.minimum(norms, clip_norm)
        if run is not None:
            # Step 1.
            decision = run.charge(
                images.users, granted, noise_stddev=noise_stddev, clip_norm=clip_norm
            )
            granted = decision.granted
            admitted += int(np.count_nonzero(decision.admitted))
        # Step 2.
        gradient = rows.T @ (residuals * clip_factors(norms, granted)[:, np.newaxis])
        gradient += noise.normal(0.0, noise_stddev, gradient.shape)
        # Step 3.
        weights -= settings.learning_rate / settings.population * gradient
        predicted = (images.test @ weights).argmax(axis=1)
        accuracy[step] = np.mean(predicted == images.test_labels)
        progress()
    return Trace(accuracy, admitted)


@dataclass(frozen=True, eq=False)
class Images:
    """Training and test images as rows of features; row i of the training images is user i."""

    name: str
    train: NDArray[np.float64]
    train_labels: NDArray[np.int64]
    test: NDArray[np.float64]
    test_labels: NDArray[np.int64]

    @property
    def users(self) -> NDArray[np.int64]:
        """The ids of the training images."""
        return np.arange(len(self.train), dtype=np.int64)


def load_digits() -> Images:
    """Load the 1,797 images that scikit-learn ships (Alpaydin and Kaynak)."""
    with demo_extra():
        from sklearn.datasets import load_digits as load
    pixels, labels = load(return_X_y=True)
    return split("digits", np.asarray(pixels, np.float64), np.asarray(labels, np.int64))


def split(name: str, pixels: NDArray[np.float64], labels: NDArray[np.int64]) -> Images:
    """Hold out a fixed random fifth as test images, the same on every machine."""
    order = np.random.Generator(np.random.PCG64(_SPLIT_SEED)).permutation(len(labels))
    held_out = round(_TEST_SHARE * len(labels))
    test, train = order[:held_out], order[held_out:]
    rows = features(pixels)
    return Images(name, rows[train], labels[train], rows[test], labels[test])


def features(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale each image by its own length to 1, and append a constant for the intercept.

    So no row is longer than ``FEATURE_NORM``, which bounds gradients without a look at the data.
    """
    lengths = np.linalg.norm(pixels, axis=1, keepdims=True)
    unit = pixels / np.where(lengths > 0, lengths, 1.0)
    return np.hstack([unit, np.full((len(pixels), 1), _BIAS)])
