"""``python -m bench.papers.correlated --data DIR``: DP-FTRL beside DP-SGD, under one guarantee.

Both give every user (epsilon, delta) when one user is added or removed, each by its tightest exact
accounting: DP-SGD counts steps by loss distributions, DP-FTRL is Gaussian DP. They make the same
number of passes over the same users, in steps of the same expected size. Each is tuned by the same
trials, with other rows and another seed than the figures.

The folder has mnist-t10k. With ``--texts`` there is a second task: the texts of Debian's packages
fortunes and fortunes-min (/usr/share/games/fortunes), each of one user.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accounting import square_root_column, steps_noise_multiplier
from bench.papers.images import features
from bench.papers.mnist import load_mnist
from streams import Turnstile
from streams.trainers import CorrelatedSteps, PrivateSteps, noise_for_steps
from streams.trainers.loop import softmax

Floats = NDArray[np.float32]

DELTA: Final = 1e-5
EPSILONS: Final = (1.0, 3.0, 8.0)
METHODS: Final = ("DP-SGD", "DP-FTRL")
PASSES: Final = 4
_SPLIT_SEED: Final = 20240529
_TUNING_SEED: Final = 101
_HIDDEN: Final = 32
_CONSTANT: Final = 0.3  # an output of every hidden layer, for the intercept
_SYMBOLS: Final = " abcdefghijklmnopqrstuvwxyz.,'"
_BEFORE: Final = 3  # characters that predict the next one
_LENGTH: Final = 64  # characters of a text that are predicted


class Task(ABC):
    """Users to train on, and other rows to tune and to test with.

    Attributes:
        name: of the task.
        users: the number of users.
        population: a public number of users.
        groups: steps of a pass.
        clip_norm: about the norm of most gradients, chosen with a look at them.
        learning_rates: to try.
        shapes: of the weights.
    """

    name: str
    users: int
    population: int
    groups: int
    clip_norm: float
    learning_rates: tuple[float, ...]
    shapes: Sequence[tuple[int, int]]

    @abstractmethod
    def gradients(self, weights: list[Floats], users: NDArray[np.int64]) -> Floats:
        """Return the gradients of these users, one row each."""

    @abstractmethod
    def accuracy(self, weights: list[Floats], part: int) -> float:
        """Return the share of rows that are predicted, in percent; part 0 to tune, 1 to test."""

    def first(self, seed: int) -> list[Floats]:
        """Return the first weights: random, but for those before the softmax."""
        random = np.random.default_rng(seed)
        hidden = [random.normal(size=shape).astype(np.float32) for shape in self.shapes[:-1]]
        return [*hidden, np.zeros(self.shapes[-1], dtype=np.float32)]


class Images(Task):
    """MNIST's test images, 8,000 of users, 1,000 to tune and 1,000 to test; a hidden layer.

    Four pixels become one.
    """

    name, population, groups, clip_norm = "MNIST", 8_000, 50, 1.0
    learning_rates = (4.0, 8.0, 16.0, 32.0, 64.0)

    def __init__(self, folder: Path) -> None:
        images = load_mnist(folder / "mnist-t10k")
        self._rows, self._labels = _smaller(images.train), images.train_labels
        self.users = len(self._rows)
        rows, labels = _smaller(images.test), images.test_labels
        self._others = list(zip(np.split(rows, 2), np.split(labels, 2), strict=True))
        self.shapes = [(rows.shape[1], _HIDDEN), (_HIDDEN + 1, 10)]

    def gradients(self, weights: list[Floats], users: NDArray[np.int64]) -> Floats:
        rows = self._rows[users]
        hidden, residuals = self._outputs(weights, rows)
        residuals[np.arange(len(rows)), self._labels[users]] -= 1.0
        inner = residuals @ weights[1][:-1].T
        inner *= (1.0 - _HIDDEN * hidden[:, :-1] ** 2) / np.sqrt(_HIDDEN)
        pairs = ((rows, inner), (hidden, residuals))
        products = [left[:, :, np.newaxis] * right[:, np.newaxis] for left, right in pairs]
        flat = [product.reshape(len(rows), -1) for product in products]
        return np.concatenate(flat, axis=1, dtype=np.float32, casting="same_kind")

    def accuracy(self, weights: list[Floats], part: int) -> float:
        rows, labels = self._others[part]
        return 100.0 * float(np.mean(self._outputs(weights, rows)[1].argmax(axis=1) == labels))

    @staticmethod
    def _outputs(weights: list[Floats], rows: Floats) -> tuple[Any, Any]:
        hidden = np.tanh(rows @ weights[0]) / np.sqrt(_HIDDEN)
        hidden = np.hstack([hidden, np.full((len(rows), 1), _CONSTANT)])
        return hidden, softmax(hidden @ weights[1])


def _smaller(rows: NDArray[np.float64]) -> Floats:
    """Return images with one pixel for every four of these, of length 1, and a constant."""
    side = math.isqrt(rows.shape[1] - 1) // 2
    pixels = rows[:, :-1].reshape(-1, side, 2, side, 2).sum(axis=(2, 4)).reshape(len(rows), -1)
    return features(pixels).astype(np.float32)


class Texts(Task):
    """The next character of a text, by a softmax over the characters before it.

    A user's loss is the mean over the first characters of the user's text.
    """

    name, groups, clip_norm = "texts", 40, 0.15
    learning_rates = (8.0, 16.0, 32.0, 64.0, 128.0)

    def __init__(self, folder: Path) -> None:
        files = [file for file in sorted(folder.iterdir()) if file.is_file() and not file.suffix]
        pages = [file.read_text(encoding="utf-8", errors="replace") for file in files]
        texts = (
            re.sub(r"[^a-z.,']+", " ", text.lower())
            for page in pages
            for text in page.split("\n%\n")
        )
        longest = _BEFORE + _LENGTH
        codes = [[_SYMBOLS.index(symbol) for symbol in text[:longest]] for text in texts]
        found = np.array([code for code in codes if len(code) == longest])
        order = np.random.Generator(np.random.PCG64(_SPLIT_SEED)).permutation(len(found))
        self._codes, *self._others = np.split(
            found[order], [len(order) * 8 // 10, len(order) * 9 // 10]
        )
        self.users = len(self._codes)
        self.population = round(self.users, -2)
        self.shapes = [(_BEFORE * len(_SYMBOLS) + 1, len(_SYMBOLS))]

    def gradients(self, weights: list[Floats], users: NDArray[np.int64]) -> Floats:
        rows, following = self._examples(self._codes[users])
        residuals = self._outputs(weights, rows)
        np.put_along_axis(
            residuals,
            following[..., np.newaxis],
            np.take_along_axis(residuals, following[..., np.newaxis], -1) - 1.0,
            -1,
        )
        mean = rows.transpose(0, 2, 1) @ (residuals / _LENGTH)
        return mean.reshape(len(users), -1)

    def accuracy(self, weights: list[Floats], part: int) -> float:
        rows, following = self._examples(self._others[part])
        return 100.0 * float(np.mean(self._outputs(weights, rows).argmax(axis=-1) == following))

    @staticmethod
    def _examples(codes: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
        """Return the characters before each position as features, and the character there."""
        single = np.eye(len(_SYMBOLS), dtype=np.float32) / np.float32(np.sqrt(_BEFORE))
        before = [single[codes[:, back : back + _LENGTH]] for back in range(_BEFORE)]
        constant = np.full((len(codes), _LENGTH, 1), _CONSTANT, dtype=np.float32)
        return np.concatenate([*before, constant], axis=-1), codes[:, _BEFORE:]

    @staticmethod
    def _outputs(weights: list[Floats], rows: Floats) -> Floats:
        scores = rows @ weights[0]
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)


class Trial(NamedTuple):
    """Settings that are tuned. With momentum the learning rate is multiplied by 1 - momentum."""

    learning_rate: float
    momentum: float
    falls: bool  # the learning rate, to nothing

    def __str__(self) -> str:
        return f"{self.learning_rate:g}, {self.momentum:g}, {'falls' if self.falls else 'stays'}"


def train(task: Task, method: str, epsilon: float, trial: Trial, seed: int) -> list[Floats]:
    """Train once, through the service, under a fresh budget per user; return the weights."""
    weights, total = task.first(seed), task.groups * PASSES
    with Turnstile.in_memory(partitions=1) as service:
        steps = _steps(service, task, method, epsilon, trial.momentum, seed)
        velocity = np.zeros(sum(one.size for one in weights))
        rate = trial.learning_rate * (1.0 - trial.momentum)
        for number in range(total):
            step = steps.begin()
            step.add(task.gradients(weights, step.positions))
            velocity = trial.momentum * velocity + step.release(len(velocity))
            update = velocity * rate * (1.0 - number / total if trial.falls else 1.0)
            ends = np.cumsum([one.size for one in weights])[:-1]
            for one, part in zip(weights, np.split(update, ends), strict=True):
                one -= part.reshape(one.shape)
    return weights


def _steps(
    service: Turnstile, task: Task, method: str, epsilon: float, momentum: float, seed: int
) -> PrivateSteps:
    users, rate = np.arange(task.users), 1.0 / task.groups
    shared: dict[str, Any] = {
        "clip_norm": task.clip_norm,
        "expected_batch": task.population / task.groups,
        "steps": task.groups * PASSES,
        "levels": "clip_norm",
        "not_private_generator": np.random.default_rng(seed),
    }
    promised: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA}
    if method == "DP-SGD":
        noise = _counted(epsilon, rate, task.groups * PASSES)
        promised |= {"sampling_rate": rate, "noise_multiplier": noise}
        service.create_dataset("users", measure="steps", **promised)
        run = service.run("users", "training")
        return PrivateSteps(run, users, noise_multiplier=noise, sampling_rate=rate, **shared)
    policy = service.create_dataset("users", measure="gdp", **promised)
    return CorrelatedSteps(
        service.run("users", "training", min_separation=task.groups),
        users,
        noise_multiplier=noise_for_steps([policy], PASSES),
        column=square_root_column(task.groups, momentum=momentum),
        **shared,
    )


@lru_cache
def _counted(epsilon: float, rate: float, steps: int) -> float:
    return steps_noise_multiplier(epsilon, DELTA, rate, steps)


def tuned(task: Task, method: str, epsilon: float) -> Trial:
    """Return the trial with the best accuracy on the rows for tuning."""
    trials = [Trial(*one) for one in product(task.learning_rates, (0.0, 0.9), (False, True))]
    return max(
        trials,
        key=lambda trial: task.accuracy(train(task, method, epsilon, trial, _TUNING_SEED), 0),
    )


def table(tasks: Sequence[Task], epsilons: Sequence[float], seeds: int) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"| task, epsilon | {' | '.join(METHODS)} | DP-FTRL less DP-SGD | tuned |"
    yield "|---" * 5 + "|"
    for task, epsilon in product(tasks, epsilons):
        trials = [tuned(task, method, epsilon) for method in METHODS]
        both = list(zip(METHODS, trials, strict=True))
        found = np.array(
            [
                [
                    task.accuracy(train(task, *(method, epsilon, trial), seed), 1)
                    for method, trial in both
                ]
                for seed in range(1, seeds + 1)
            ]
        )
        cells = [*found.T, found[:, 1] - found[:, 0]]
        words = [f"{cell.mean():.2f} ± {cell.std(ddof=1) / np.sqrt(seeds):.2f}" for cell in cells]
        yield f"| {task.name}, {epsilon:g} | {' | '.join(words)} | {'; '.join(map(str, trials))} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.papers.correlated", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with mnist-t10k")
    parser.add_argument("--texts", type=Path, help="folder with the files of fortunes")
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    tasks: list[Task] = [Images(options.data)] if options.data else []
    tasks += [Texts(options.texts)] if options.texts else []
    if not tasks:
        sys.exit("give --data or --texts")
    for line in table(tasks, options.epsilons, options.seeds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
