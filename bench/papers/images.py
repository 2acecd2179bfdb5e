"""Images, each of one user, as rows of features of a bounded norm.

The model of the trainings is multinomial logistic regression (Feldman and Zrnic 2021, section 5).
The gradient of an image is the outer product of its features x and its residual r = p - y; its norm
is |r| |x|. No gradient is longer than CLIP_NORM, which is known without the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

CLASSES: Final = 10

_TEST_SHARE: Final = 0.2
_SPLIT_SEED: Final = 20210913
_BIAS: Final = 0.3

FEATURE_NORM: Final = math.sqrt(1.0 + _BIAS**2)
"""The largest L2 norm of a row of features."""
CLIP_NORM: Final = math.sqrt(2.0) * FEATURE_NORM
"""A residual is the difference of two probability vectors: its norm is at most sqrt(2)."""


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

    def accuracy(self, weights: NDArray[np.float64]) -> float:
        """Return the share of the test images that a linear model classifies correctly."""
        return float(np.mean((self.test @ weights).argmax(axis=1) == self.test_labels))


def load_digits() -> Images:
    """Load the 1,797 images that scikit-learn ships (Alpaydin and Kaynak)."""
    pixels, labels = datasets.load_digits(return_X_y=True)
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
