"""Examples of ordinary users, and those with which one user tries to stand out in a training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.trainers.checkpoint import Checkpoint
from tests.worlds.neighbours import Fact

USER = 99
FEATURES = 3


class Example(NamedTuple):
    """An example of a user: features, and a label that is usually 0 or 1."""

    user: int
    features: tuple[float, float, float]
    label: Any


_random = np.random.default_rng(0)
OTHERS = [
    Example(user, (float(x), float(y), float(z)), int(x > 0))
    for user in range(12)
    for x, y, z in _random.normal(size=(1 + user % 3, FEATURES))
]

USUAL: dict[str, list[Example]] = {
    "one example": [Example(USER, (0.5, -0.5, 1.0), 1)],
    "very many examples": [Example(USER, (0.1, 0.2, 0.3), place % 2) for place in range(700)],
    "zeros": [Example(USER, (0.0, 0.0, 0.0), 0)],
    "large numbers": [Example(USER, (1e30, -1e30, 1e30), 1)],
    "the largest numbers": [Example(USER, (1e308, -1e308, 1e308), 1)],
    "sums beyond the largest number": [Example(USER, (1.7e308, -1.7e308, 0.0), 1)] * 3,
    "the smallest numbers": [Example(USER, (5e-324, -5e-324, 1e-310), 1)],
}
BROKEN: dict[str, list[Example]] = {
    "not a number": [Example(USER, (float("nan"), 0.0, 0.0), 1)],
    "infinite": [Example(USER, (float("inf"), -float("inf"), 0.0), 1)],
}
UNKNOWN: dict[str, list[Example]] = {
    "a label that is no class": [Example(USER, (0.5, -0.5, 1.0), 7)],
    "a label that is no number": [Example(USER, (0.5, -0.5, 1.0), float("nan"))],
    "a label between classes": [Example(USER, (0.5, -0.5, 1.0), 0.5)],
    "no label": [Example(USER, (0.5, -0.5, 1.0), None)],
    "a text": [Example(USER, (0.5, -0.5, 1.0), "x")],
    "a list": [Example(USER, (0.5, -0.5, 1.0), [1, 2])],
}


def arrays(data: Sequence[Example]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return users, features and labels."""
    users = np.array([one.user for one in data], dtype=np.int64)
    features = np.array([one.features for one in data], dtype=float).reshape(-1, FEATURES)
    return users, features, np.array([one.label for one in data], dtype=np.int64)


def saved(path: str) -> Iterator[Fact]:
    """Yield what is public of a checkpoint: everything but the numbers in it."""
    yield Fact("saved step", Checkpoint(path).released())
    with np.load(Path(path), allow_pickle=False) as file:
        yield Fact("saved", {name: (file[name].dtype, file[name].shape) for name in file.files})
