"""The norms of a real training run: private SGD on images, with some users followed throughout.

A network with one hidden layer, Poisson sampling, every gradient clipped to C and noise added to
the sum (Koskela et al., Fig. 1: 50 epochs, batches of 300, noise multiplier 2, C = 5; Yu et al.
follow 1,000 users and compute their norms at every step). The norm of a gradient is the product
of the norms of what goes into a layer and what comes back to it, so no gradient is written out.

Every followed user is charged at every step, sampled or not, with the clipped norm of that step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from accounting import PoissonGaussian
from bench.papers.images import CLASSES, Images

EPOCHS = 50
BATCH = 300
NOISE_MULTIPLIER = 2.0
CLIP_NORM = 5.0
HIDDEN = 64
LEARNING_RATE = 0.5


@dataclass(frozen=True, eq=False)
class Training:
    """What a run leaves for the accountants."""

    data: str
    sampling_rate: float
    norms: NDArray[np.float64]  # (followed users, steps), at most CLIP_NORM
    accuracy: float
    losses: NDArray[np.float64]  # (users,), of the trained network
    test_losses: NDArray[np.float64]  # (test images,)

    @property
    def mechanism(self) -> PoissonGaussian:
        """What each step ran; the noise is added to the sum of clipped gradients."""
        return PoissonGaussian(NOISE_MULTIPLIER * CLIP_NORM, self.sampling_rate)

    @property
    def steps(self) -> int:
        """How many were made."""
        return self.norms.shape[1]


def train(
    images: Images,
    epochs: int = EPOCHS,
    followed: int | None = None,
    seed: int = 1,
) -> Training:
    """Train by SGD, and keep the norms of the first `followed` users (None: all) at every step."""
    random = np.random.default_rng(seed)
    users = len(images.train)
    rate = min(BATCH / users, 1.0)
    steps = round(epochs / rate)
    network = _Network(images.train.shape[1], random)
    norms = np.empty((len(images.train[:followed]), steps))
    for step in range(steps):
        norms[:, step] = network.norms(images.train[:followed], images.train_labels[:followed])
        batch = random.random(users) < rate
        network.descend(
            images.train[batch],
            images.train_labels[batch],
            LEARNING_RATE / (rate * users),
            NOISE_MULTIPLIER * CLIP_NORM,
            random,
        )
    scores = network.forward(images.test)[1]
    right = scores.argmax(axis=1) == images.test_labels
    return Training(
        images.name,
        rate,
        np.minimum(norms, CLIP_NORM),
        float(np.mean(right)),
        cross_entropy(network.forward(images.train)[1], images.train_labels),
        cross_entropy(scores, images.test_labels),
    )


def class_means(values: ArrayLike, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Average the values of each class's images."""
    found = np.asarray(values, np.float64)
    return np.array([found[labels == one].mean() for one in range(CLASSES)])


def cross_entropy(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the loss of each image, (images,), from its scores, (images, classes)."""
    return np.asarray(logsumexp(scores, axis=1) - scores[np.arange(len(labels)), labels])


class _Network:
    """tanh between two linear layers; rows of the inputs are images."""

    def __init__(self, inputs: int, random: np.random.Generator) -> None:
        self._first = random.normal(0.0, 1.0, (inputs, HIDDEN))
        self._second = np.zeros((HIDDEN + 1, CLASSES))

    def forward(
        self, inputs: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The hidden layer with a constant, and the scores of the classes."""
        hidden = np.tanh(inputs @ self._first)
        hidden = np.hstack([hidden, np.ones((len(hidden), 1))])
        return hidden, hidden @ self._second

    def norms(self, inputs: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """The L2 norm of each image's gradient, unclipped."""
        return self._gradients(inputs, labels)[-1]

    def descend(
        self,
        inputs: NDArray[np.float64],
        labels: NDArray[np.int64],
        rate: float,
        noise_stddev: float,
        random: np.random.Generator,
    ) -> None:
        """Make one step: add up clipped gradients and noise, and multiply by a constant rate."""
        hidden, back_first, back_second, norms = self._gradients(inputs, labels)
        kept = np.minimum(1.0, CLIP_NORM / np.maximum(norms, 1e-300))[:, np.newaxis]
        for weights, sums in (
            (self._first, inputs.T @ (kept * back_first)),
            (self._second, hidden.T @ (kept * back_second)),
        ):
            weights -= rate * (sums + random.normal(0.0, noise_stddev, sums.shape))

    def _gradients(
        self, inputs: NDArray[np.float64], labels: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        hidden, scores = self.forward(inputs)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        back_second = odds / odds.sum(axis=1, keepdims=True)
        back_second[np.arange(len(labels)), labels] -= 1.0
        back_first = (back_second @ self._second[:-1].T) * (1.0 - hidden[:, :-1] ** 2)
        squares = sum(
            (into**2).sum(axis=1) * (back**2).sum(axis=1)
            for into, back in ((inputs, back_first), (hidden, back_second))
        )
        return hidden, back_first, back_second, np.sqrt(squares)
