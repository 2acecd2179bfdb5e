"""``python -m tests.benchmarks.training``: private training beside Opacus's, in one run.

Both get the same guarantee for every user, the same network and first weights, rate, epochs, clip
norm, denominator and learning rate. Opacus's noise is what its own PRV accountant asks for; ours is
that of a dataset that counts steps. Two kinds of training are compared:

- A linear model whose clip norm is known without the data and clips nothing.
- A network whose clip norm and learning rate were chosen on trainings by Opacus.

Steps are made in turns, some of each in a row, so that charging ahead gains nothing from the
others' turns. PyTorch and Opacus are needed: ``make bench-torch``. Settings were chosen with the
data at hand, which no guarantee covers.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from opacus import PrivacyEngine as OpacusEngine
from opacus.accountants.utils import get_noise_multiplier
from scipy import stats
from torch import nn

from accounting import steps_noise_multiplier
from streams import Turnstile
from streams.demo.training import CLIP_NORM, Images, load_digits
from streams.local import LocalStack
from streams.records import Measure
from streams.trainers import PrivacyEngine
from tests.papers.mnist import load_mnist

_DELTA = 1e-5
OPACUS, IN_MEMORY, GHOST = "Opacus", "ours, in memory", "ours, in memory, ghost clipping"
SERVICE, AHEAD = "ours, over the service", "ours, over the service, charged ahead"
_IN_A_ROW = 12


@dataclass(frozen=True)
class Task:
    """What is trained, and under which guarantee.

    Attributes:
        words: the network and how the clip norm was found.
        layers: of the network, without weights until they are called.
        scale: of images of length 1; 0: features as they are, with a constant.
        a_pass: steps of an epoch: users are drawn with one over this.
        rate_falls: whether the learning rate falls to nothing.
    """

    words: str
    images: Images
    layers: Callable[[], list[nn.Module]]
    scale: float
    epsilon: float
    epochs: int
    a_pass: int
    clip_norm: float
    learning_rate: float
    rate_falls: bool

    @property
    def steps(self) -> int:
        return self.a_pass * self.epochs

    def tensors(self, rows: np.ndarray) -> torch.Tensor:
        if self.scale:
            side = math.isqrt(rows.shape[1] - 1)
            rows = self.scale * rows[:, :-1].reshape(-1, 1, side, side)  # without the constant
        return torch.tensor(rows, dtype=torch.float32)

    def network(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(*self.layers())

    def accuracy(self, module: nn.Module) -> float:
        module.eval()
        with torch.no_grad():
            guesses = module(self.tensors(self.images.test)).argmax(dim=1).numpy()
        module.train()
        return float(np.mean(guesses == self.images.test_labels))


def _convolutions(*sizes: tuple[int, int, int], pool: tuple[int, int], flat: int) -> Any:
    """Two convolutions (kernel, stride, padding) with pooling, two linear layers."""

    def layers() -> list[nn.Module]:
        first, second = sizes
        return [
            *(nn.Conv2d(1, 16, *first), nn.ReLU(), nn.MaxPool2d(*pool)),
            *(nn.Conv2d(16, 32, *second), nn.ReLU(), nn.MaxPool2d(*pool), nn.Flatten()),
            *(nn.Linear(flat, 32), nn.ReLU(), nn.Linear(32, 10)),
        ]

    return layers


def _tasks(images: Images) -> list[Task]:
    """A linear model whose clip norm clips nothing, as in the demo; a convolutional network."""
    is_mnist = images.name == "MNIST"
    inputs = images.train.shape[1]
    linear = Task(
        "linear model; clip norm known without the data",
        images,
        lambda: [nn.Linear(inputs, 10, bias=False)],
        scale=0.0,
        epsilon=1.0 if is_mnist else 2.0,
        epochs=4 if is_mnist else 20,
        a_pass=50 if is_mnist else 10,
        clip_norm=CLIP_NORM,
        learning_rate=6.0 if is_mnist else 3.0,
        rate_falls=False,
    )
    if is_mnist:
        layers = _convolutions((8, 2, 3), (4, 2, 0), pool=(2, 1), flat=512)
    else:
        layers = _convolutions((3, 1, 1), (3, 1, 1), pool=(2, 2), flat=128)
    convolutional = Task(
        "convolutional network; clip norm and learning rate chosen for Opacus",
        images,
        layers,
        scale=9.0 if is_mnist else 4.0,
        epsilon=1.0 if is_mnist else 3.0,
        epochs=3 if is_mnist else 15,
        a_pass=32 if is_mnist else 12,
        clip_norm=1.0 if is_mnist else 4.0,
        learning_rate=1.5 if is_mnist else 0.4,
        rate_falls=True,
    )
    return [linear, convolutional]


@dataclass
class Result:
    """Of one way to train: accuracies, one a seed, and seconds a step: all, and computing."""

    accuracies: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    computing: list[float] = field(default_factory=list)

    @property
    def accuracy(self) -> str:
        return f"{100 * np.mean(self.accuracies):.2f} ± {100 * _error(self.accuracies):.2f} %"


class Contestant:
    """One training, step by step."""

    def __init__(self, task: Task, made: tuple[Any, Any, Any], result: Result) -> None:
        self._task, (self.module, self._optimizer, self._loader) = task, made
        self._batches = chain.from_iterable(self._loader for _ in range(task.epochs))
        self._result = result
        self._times: list[tuple[float, float]] = []

    def step(self) -> None:
        """Draw, compute gradients, charge, release, move; the time of all of it."""
        began = time.perf_counter(), time.process_time()
        if self._task.rate_falls:
            for group in self._optimizer.param_groups:
                left = 1.0 - len(self._times) / self._task.steps
                group["lr"] = self._task.learning_rate * left
        is_last = False
        while not is_last:  # a step of ours with many users has several batches
            rows, labels = next(self._batches)
            self._optimizer.zero_grad()
            nn.functional.cross_entropy(self.module(rows), labels).backward()
            self._optimizer.step()
            is_last = getattr(self._loader, "is_last", True)
        self._times.append((time.perf_counter() - began[0], time.process_time() - began[1]))

    def finish(self) -> None:
        for wall, computing in self._times:
            self._result.wall.append(wall)
            self._result.computing.append(computing)
        self._result.accuracies.append(self._task.accuracy(self.module))


def compare(
    task: Task, seeds: range, measure: Measure, service: Turnstile | None
) -> tuple[dict[str, Result], tuple[float, float]]:
    """Train with every seed; over the service and with ghost clipping with the first one.

    Returns:
        The results by name, and the noise multipliers of Opacus and of this library.
    """
    results = {name: Result() for name in (OPACUS, IN_MEMORY, GHOST, SERVICE, AHEAD)}
    data = torch.utils.data.TensorDataset(
        task.tensors(task.images.train), torch.tensor(task.images.train_labels)
    )
    rate = 1.0 / task.a_pass
    loader = torch.utils.data.DataLoader(data, batch_size=-(-len(data) // task.a_pass))
    assert len(loader) == task.a_pass
    theirs = get_noise_multiplier(
        target_epsilon=task.epsilon,
        target_delta=_DELTA,
        sample_rate=rate,
        epochs=task.epochs,
        accountant="prv",
    )

    counted: dict[str, float] = {}
    if measure == "steps":
        ours = steps_noise_multiplier(task.epsilon, _DELTA, rate, task.steps)
        counted = {"sampling_rate": rate, "noise_multiplier": ours}

    def opacus(seed: int) -> tuple[Any, Any, Any]:
        module, optimizer = _begin(task, seed)
        return OpacusEngine().make_private(
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=theirs,
            max_grad_norm=task.clip_norm,
            # With the seed of the weights, the first noise would have their random bits: each
            # tensor's correlation with its noise would be -0.35.
            noise_generator=torch.Generator().manual_seed(10**6 + seed),
        )

    def individual(
        seed: int, turnstile: Turnstile, mode: str = "hooks", ahead: bool = False
    ) -> tuple[Any, Any, Any]:
        module, optimizer = _begin(task, seed)
        name = f"t{uuid4().hex[:8]}"
        if counted:  # the loss distributions are composed once, not for every seed
            turnstile.create_dataset(
                name, measure="steps", budget=task.steps, odometer_step=task.steps, **counted
            )
        engine = PrivacyEngine(turnstile, dataset=name, run="training", measure=measure)
        made = engine.make_private_with_epsilon(
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            target_epsilon=task.epsilon,
            target_delta=_DELTA,
            epochs=task.epochs,
            max_grad_norm=task.clip_norm,
            grad_sample_mode=mode,
            charge_ahead=ahead,
            not_private_generator=np.random.default_rng(seed),
        )
        noises.add((theirs, engine.statement()["noise_multiplier"]))
        return made

    noises: set[tuple[float, float]] = set()
    for seed in seeds:
        made: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
            OPACUS: lambda seed=seed: opacus(seed),
            IN_MEMORY: lambda seed=seed: individual(seed, Turnstile.in_memory(partitions=1)),
        }
        if seed == seeds[0]:
            made[GHOST] = lambda: individual(seeds[0], Turnstile.in_memory(partitions=1), "ghost")
            if service is not None:
                made[SERVICE] = lambda: individual(seeds[0], service)
                made[AHEAD] = lambda: individual(seeds[0], service, ahead=True)
        racing = [Contestant(task, make(), results[name]) for name, make in made.items()]
        for first in range(0, task.steps, _IN_A_ROW):
            for contestant in racing:
                for _ in range(min(_IN_A_ROW, task.steps - first)):
                    contestant.step()
        for contestant in racing:
            contestant.finish()
        print({name: results[name].accuracies[-1] for name in made}, file=sys.stderr, flush=True)
    return results, noises.pop()


def lines(task: Task, results: dict[str, Result], noises: tuple[float, float]) -> list[str]:
    """Return a table."""
    theirs, ours = results[OPACUS], results[IN_MEMORY]
    gained = np.subtract(ours.accuracies, theirs.accuracies)
    images = task.images
    half = stats.t.ppf(0.975, len(gained) - 1) * _error(gained) if len(gained) > 1 else math.nan
    text = [
        f"## {images.name}, {task.words}",
        "",
        f"{len(images.train):,} users, ({task.epsilon:g}, {_DELTA:g})-DP, {task.steps} steps at "
        f"rate 1/{task.a_pass}, clip norm {task.clip_norm:.3g}, "
        f"learning rate {task.learning_rate:g}. Noise multiplier: Opacus {noises[0]:.4f}, "
        f"ours {noises[1]:.4f}.",
        f"Accuracy on {len(images.test):,} other images, mean and standard error over "
        f"{len(gained)} seeds; ours above Opacus's by {100 * gained.mean():.2f} ± "
        f"{100 * half:.2f} points, seed by seed (95 % interval). Medians of steps made in turns.",
        "",
        "| | accuracy | a step | over Opacus's | computing | over Opacus's |",
        "|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        if not result.accuracies:
            continue
        accuracies = result.accuracies
        one = f"{100 * accuracies[0]:.2f} %, one seed: {100 * ours.accuracies[0]:.2f} in memory"
        cells = [name, result.accuracy if len(accuracies) > 1 else one]
        for mine, other in ((result.wall, theirs.wall), (result.computing, theirs.computing)):
            cells.append(f"{1e3 * np.median(mine):.1f} ms")
            cells.append(f"{np.median(mine) / np.median(other[: len(mine)]):.2f}")
        text.append(f"| {' | '.join(cells)} |")
    return [*text, ""]


def _begin(task: Task, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    module = task.network(seed)
    return module, torch.optim.SGD(module.parameters(), lr=task.learning_rate)


def _error(values: Any) -> float:
    """Standard error of a mean."""
    if len(values) < 2:
        return math.nan
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def main() -> None:
    """Read the arguments, train, print and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.training")
    parser.add_argument("--data", type=Path, help="folder with mnist-t10k; default: digits alone")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", choices=["linear", "convolutional"], help="one kind of training")
    parser.add_argument("--measure", default="steps", help="of the datasets that are charged")
    parser.add_argument("--service", action="store_true", help="also over a broker and a Redis")
    parser.add_argument("--out", type=Path, default=Path("out/opacus.md"))
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    data = [load_digits(), *([load_mnist(options.data / "mnist-t10k")] if options.data else [])]
    text: list[str] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        service = None
        if options.service:
            local = stack.enter_context(LocalStack(workers=1))
            service = stack.enter_context(Turnstile(local.kafka, prefix=local.prefix))
        for task in chain.from_iterable(map(_tasks, data)):
            if not task.words.startswith(options.only or ""):
                continue
            results, noises = compare(task, seeds, options.measure, service)
            if service is not None:
                assert results[SERVICE].accuracies == results[IN_MEMORY].accuracies[:1]
            text += lines(task, results, noises)
            options.out.write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
