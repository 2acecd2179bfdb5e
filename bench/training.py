"""``python -m bench.training``: private training beside Opacus's, in one run.

Both give every user the same guarantee. They share the network, first weights, rate, epochs, clip
norm and learning rate. Opacus rounds the denominator down (119 for 119.8). Its noise is what its
own PRV accountant asks for; ours is that of a dataset that counts steps. Two kinds of training are
compared:

- A linear model whose clip norm is known without the data and clips nothing.
- A network whose clip norm and learning rate were chosen on trainings by Opacus.

Accuracies are compared in pairs. With every seed, both trainings also share the coins that draw the
batches and the normal deviates of the noise, each scaled by its own noise multiplier. The interval
of the differences is then about the method, not about the luck of two draws. For this,
`paired_batches` replaces Opacus's loader, and the hook `adds_noise` the noise of its optimizer.

Times are compared with one seed, and Opacus's own loader and noise. Steps are made in turns, some
of each in a row, so that charging ahead gains nothing from the others' turns.

PyTorch and Opacus are needed: ``make bench-torch``. Settings were chosen with the data at hand,
which no guarantee covers.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
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
from accounting.release.exact_normals import ExactNormals
from bench.papers.images import CLIP_NORM, Images, load_digits
from bench.papers.mnist import load_mnist
from streams import Turnstile
from streams.local import LocalStack
from streams.records import Measure
from streams.sdk.roster_steps import poisson_sample
from streams.trainers import PrivacyEngine
from streams.trainers.steps import GRID_BITS

_DELTA = 1e-5
OPACUS, IN_MEMORY = "Opacus", "ours, in memory"
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


class Training:
    """One training, step by step.

    Attributes:
        wall: seconds of each step.
        computing: seconds of CPU time of each step.
    """

    def __init__(self, task: Task, made: tuple[Any, Any, Any]) -> None:
        self._task, (self._module, self._optimizer, self._loader) = task, made
        self._batches = chain.from_iterable(self._loader for _ in range(task.epochs))
        self.wall: list[float] = []
        self.computing: list[float] = []

    def step(self) -> None:
        """Draw, compute gradients, charge, release, move; the time of all of it."""
        began = time.perf_counter(), time.process_time()
        if self._task.rate_falls:
            for group in self._optimizer.param_groups:
                left = 1.0 - len(self.wall) / self._task.steps
                group["lr"] = self._task.learning_rate * left
        is_last = False
        while not is_last:  # a step of ours with many users has several batches
            rows, labels = next(self._batches)
            self._optimizer.zero_grad()
            nn.functional.cross_entropy(self._module(rows), labels).backward()
            self._optimizer.step()
            is_last = getattr(self._loader, "is_last", True)
        self.wall.append(time.perf_counter() - began[0])
        self.computing.append(time.process_time() - began[1])

    def accuracy(self) -> float:
        return self._task.accuracy(self._module)


def adds_noise(
    coins: np.random.Generator, noise_stddev: float, factor: float = 1.0
) -> Callable[[Any], None]:
    """Return a hook for Opacus that adds this library's noise after these coins, times a factor.

    Args:
        coins: draws the noise.
        noise_stddev: of this library's sums.
        factor: Opacus's noise over this library's.
    """
    spacing, normals = 2.0 ** (np.frexp(noise_stddev)[1] - GRID_BITS), ExactNormals(coins)

    def add(optimizer: Any) -> None:
        sizes = [parameter.numel() for parameter in optimizer.params]
        noise = normals.draw(Fraction(noise_stddev) / Fraction(spacing), sum(sizes))
        mean = torch.from_numpy(noise * (spacing * factor) / optimizer.expected_batch_size)
        for parameter, part in zip(optimizer.params, mean.float().split(sizes), strict=True):
            parameter.grad += part.view_as(parameter)

    return add


def paired_batches(
    data: torch.utils.data.TensorDataset, rate: float, coins: np.random.Generator
) -> Iterator[Any]:
    """Yield the batches that this library draws with these coins if all users are admitted."""
    everybody = np.ones(len(data), dtype=np.bool_)
    while True:
        yield data[poisson_sample(everybody, rate, not_private_generator=coins)]


class Bench:
    """Makes the trainings of one task, all with the same guarantee."""

    def __init__(self, task: Task, measure: Measure) -> None:
        self.task, self._measure, self._rate = task, measure, 1.0 / task.a_pass
        labels = torch.tensor(task.images.train_labels)
        self._data = torch.utils.data.TensorDataset(task.tensors(task.images.train), labels)
        size = -(-len(self._data) // task.a_pass)
        self._loader = torch.utils.data.DataLoader(self._data, batch_size=size)
        assert len(self._loader) == task.a_pass
        self.theirs = get_noise_multiplier(
            target_epsilon=task.epsilon,
            target_delta=_DELTA,
            sample_rate=self._rate,
            epochs=task.epochs,
            accountant="prv",
        )
        self.ours = math.nan  # known when ours was made
        self._counted: dict[str, float] = {}
        if measure == "steps":  # the loss distributions are composed once, not for every seed
            noise = steps_noise_multiplier(task.epsilon, _DELTA, self._rate, task.steps)
            self._counted = {"sampling_rate": self._rate, "noise_multiplier": noise}

    def opacus(self, seed: int, noise_multiplier: float) -> tuple[Any, Any, Any]:
        """Make a training by Opacus alone."""
        module, optimizer = self._begin(seed)
        return OpacusEngine().make_private(
            module=module,
            optimizer=optimizer,
            data_loader=self._loader,
            noise_multiplier=noise_multiplier,
            max_grad_norm=self.task.clip_norm,
        )

    def individual(
        self,
        seed: int,
        turnstile: Turnstile,
        coins: np.random.Generator | None,
        ahead: bool = False,
    ) -> Training:
        """Make a training by this library."""
        module, optimizer = self._begin(seed)
        task, name = self.task, f"t{uuid4().hex[:8]}"
        if self._counted:
            turnstile.create_dataset(
                name, measure="steps", budget=task.steps, odometer_step=task.steps, **self._counted
            )
        engine = PrivacyEngine(turnstile, dataset=name, run="training", measure=self._measure)
        made = engine.make_private_with_epsilon(
            module=module,
            optimizer=optimizer,
            data_loader=self._loader,
            population=len(self._loader.dataset),
            sampling_rate=self._rate,
            target_epsilon=task.epsilon,
            target_delta=_DELTA,
            epochs=task.epochs,
            max_grad_norm=task.clip_norm,
            charge_ahead=ahead,
            examples_are_independent=True,  # cross entropy, and layers that mix no examples
            not_private_generator=coins,
        )
        self.ours = engine.statement()["noise_multiplier"]
        return Training(task, made)

    def pair(self, seed: int) -> tuple[float, float]:
        """Return the accuracies of Opacus and of this library with the same coins and normals."""
        coins, their_coins = np.random.default_rng(seed), np.random.default_rng(seed)
        mine = self.individual(seed, Turnstile.in_memory(partitions=1), coins)
        module, optimizer, _ = self.opacus(seed, noise_multiplier=0.0)  # the hook adds it
        stddev = self.ours * self.task.clip_norm
        optimizer.attach_step_hook(adds_noise(their_coins, stddev, self.theirs / self.ours))
        batches = paired_batches(self._data, self._rate, their_coins)
        their = Training(self.task, (module, optimizer, batches))
        for _ in range(self.task.steps):
            mine.step()
            their.step()
            assert coins.bit_generator.state == their_coins.bit_generator.state, "not paired"
        return their.accuracy(), mine.accuracy()

    def race(self, seed: int, service: Turnstile | None) -> dict[str, Training]:
        """Train in turns, in every way, for the times of steps.

        Coins and noise are private, as users have them: a seeded generator would take less time.
        """

        def individual(turnstile: Turnstile, ahead: bool = False) -> Training:
            return self.individual(seed, turnstile, None, ahead)

        racing = {
            OPACUS: Training(self.task, self.opacus(seed, self.theirs)),
            IN_MEMORY: individual(Turnstile.in_memory()),
        }
        if service is not None:
            racing[SERVICE] = individual(service)
            racing[AHEAD] = individual(service, ahead=True)
        for first in range(0, self.task.steps, _IN_A_ROW):
            for training in racing.values():
                for _ in range(min(_IN_A_ROW, self.task.steps - first)):
                    training.step()
        return racing

    def _begin(self, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        module = self.task.network(seed)
        return module, torch.optim.SGD(module.parameters(), lr=self.task.learning_rate)


def lines(bench: Bench, pairs: list[tuple[float, float]], racing: dict[str, Training]) -> list[str]:
    """Return the text of a task."""
    task, images = bench.task, bench.task.images
    theirs, ours = 100.0 * np.array(pairs).T
    gained = ours - theirs
    half = stats.t.ppf(0.975, len(pairs) - 1) * _error(gained) if len(pairs) > 1 else math.nan
    text = [
        f"## {images.name}, {task.words}",
        "",
        f"{len(images.train):,} users, ({task.epsilon:g}, {_DELTA:g})-DP, {task.steps} steps at "
        f"rate 1/{task.a_pass}, clip norm {task.clip_norm:.3g}, "
        f"learning rate {task.learning_rate:g}. Noise multiplier: Opacus {bench.theirs:.4f}, "
        f"ours {bench.ours:.4f}.",
        f"Accuracy on {len(images.test):,} other images, mean and standard error over "
        f"{len(pairs)} seeds: Opacus {theirs.mean():.2f} ± {_error(theirs):.2f} %, ours "
        f"{ours.mean():.2f} ± {_error(ours):.2f} %. Ours minus Opacus with the same coins and "
        f"normals: {gained.mean():.2f} points, standard error {_error(gained):.2f}, "
        f"95 % interval {gained.mean() - half:.2f} to {gained.mean() + half:.2f}.",
        "",
        "| medians | a step | over Opacus's | computing | over Opacus's |",
        "|---|---|---|---|---|",
    ]
    first = racing[OPACUS]
    for name, training in racing.items():
        cells = [name]
        for mine, other in (training.wall, first.wall), (training.computing, first.computing):
            median = np.median(mine)
            cells += [f"{1e3 * median:.1f} ms", f"{median / np.median(other):.2f}"]
        text.append(f"| {' | '.join(cells)} |")
    return [*text, ""]


def _error(values: Any) -> float:
    """Standard error of a mean."""
    if len(values) < 2:
        return math.nan
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def main() -> None:
    """Read the arguments, train, print and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.training")
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
            bench, pairs = Bench(task, options.measure), []
            for seed in seeds:
                pairs.append(bench.pair(seed))
                print(seed, *pairs[-1], file=sys.stderr, flush=True)
            text += lines(bench, pairs, bench.race(seeds[0], service))
            options.out.write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
