"""Labelled images: scikit-learn's digits, or MNIST's idx files. One image is one user."""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams.demo.errors import DemoError, demo_extra

IMAGES_FILE: Final = "t10k-images-idx3-ubyte.gz"
LABELS_FILE: Final = "t10k-labels-idx1-ubyte.gz"
CLASSES: Final = 10

_TEST_SHARE: Final = 0.2
_SPLIT_SEED: Final = 20210913
_UNSIGNED_BYTE: Final = 0x08
_BIAS: Final = 0.3

FEATURE_NORM: Final = math.sqrt(1.0 + _BIAS**2)
"""No image has a larger L2 norm as ``features`` gives it."""


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
    """The 1,797 images of handwritten digits that scikit-learn ships (Alpaydin and Kaynak)."""
    with demo_extra():
        from sklearn.datasets import load_digits as load
    pixels, labels = load(return_X_y=True)
    return split("digits", np.asarray(pixels, np.float64), np.asarray(labels, np.int64))


def load_mnist(folder: Path) -> Images:
    """The 10,000 MNIST test images, split again into training and test."""
    pixels = read_idx(folder / IMAGES_FILE)
    labels = read_idx(folder / LABELS_FILE)
    if pixels.ndim < 2 or labels.shape != pixels.shape[:1] or not len(labels):
        raise DemoError(
            f"{folder}: images of shape {pixels.shape} and labels of shape {labels.shape} "
            "do not belong together"
        )
    if int(labels.max()) >= CLASSES:
        raise DemoError(f"{folder / LABELS_FILE} has label {labels.max()}; labels are 0 to 9")
    rows = pixels.reshape(len(pixels), -1).astype(np.float64)
    return split("MNIST", rows, labels.astype(np.int64))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An array of unsigned bytes from a gzipped idx file.

    Raises:
        DemoError: there is no such file, or it is something else.
    """
    try:
        with gzip.open(path) as file:
            content = file.read()
    except (OSError, EOFError) as error:
        raise DemoError(f"cannot read {path}: {error}") from error
    dimensions = content[3] if len(content) >= 4 else 0
    if content[:3] != bytes([0, 0, _UNSIGNED_BYTE]) or not dimensions:
        raise DemoError(f"{path} is not an idx file of unsigned bytes")
    head = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(content[4:head], dtype=">u4").tolist())
    if len(shape) != dimensions or math.prod(shape) != len(content) - head:
        raise DemoError(f"{path} holds {len(content) - head} values, not those of shape {shape}")
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)


def split(name: str, pixels: NDArray[np.float64], labels: NDArray[np.int64]) -> Images:
    """A fixed random fifth as test images, the same on every machine."""
    order = np.random.Generator(np.random.PCG64(_SPLIT_SEED)).permutation(len(labels))
    held_out = round(_TEST_SHARE * len(labels))
    test, train = order[:held_out], order[held_out:]
    rows = features(pixels)
    return Images(name, rows[train], labels[train], rows[test], labels[test])


def features(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each image scaled to length 1, by itself, and a constant for the intercept.

    Every row then has the norm ``FEATURE_NORM`` (a blank image less), which bounds its gradients
    without a look at the data.
    """
    lengths = np.linalg.norm(pixels, axis=1, keepdims=True)
    unit = pixels / np.where(lengths > 0, lengths, 1.0)
    return np.hstack([unit, np.full((len(pixels), 1), _BIAS)])
