"""A training that dies at a chosen point of a chosen step, on a service or in memory.

Sampling and noise come from a seed, and the checkpoint stores the generator with the model. So two
trainings that die at the same points are equal bit for bit. Points of a step:

    half         one partition's part of the step is in Kafka: the step is handed back
    decided      the charge has returned and users are drawn; nothing is released: it is given up
    released     the checkpoint is written
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streams.sdk.client import Turnstile
from streams.trainers import Checkpoint, Descent, PrivateSteps, PrivateTrainer
from tests.integration.trainer import die_if, watch_publishing

POLICY: dict[str, Any] = {"measure": "renyi", "epsilon": 2.0, "delta": 1e-5}
USERS = np.arange(200)
ROWS = (
    np.random.default_rng(5).normal(0.0, 1.0, (len(USERS), 4))
    * np.geomspace(0.05, 2.0, 200)[:, np.newaxis]
)
STEPS = 40

Floats = NDArray[np.float64]


class SeededDescent(Descent):
    """A checkpoint that stores the random generator with the model."""

    def __init__(self, generator: np.random.Generator) -> None:
        super().__init__(0.5, momentum=0.5)
        self.generator = generator

    def state(self) -> Mapping[str, Floats]:
        kept = json.dumps(self.generator.bit_generator.state).encode()
        return {**super().state(), "generator": np.frombuffer(kept, dtype=np.uint8)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().restore(state)
        self.generator.bit_generator.state = json.loads(state["generator"].tobytes())


class Training:
    """Train until the process dies; ``at`` is called at the points of each step."""

    def __init__(
        self,
        turnstile: Turnstile,
        dataset: str,
        checkpoint: Checkpoint,
        at: Callable[[str, int], None] = lambda point, step: None,
    ) -> None:
        self.run = turnstile.run(dataset, "training")
        self.at = at
        generator = np.random.default_rng(1)
        self.steps = PrivateSteps(
            self.run,
            USERS,
            clip_norm=1.0,
            noise_multiplier=lambda step: (1.5, 1.2)[step // 10 % 2],
            sampling_rate=0.2,
            expected_batch=40.0,
            not_private_generator=generator,
        )
        self.trainer = PrivateTrainer(
            self.steps, self.gradients, SeededDescent(generator), checkpoint=checkpoint
        )

    def gradients(self, model: Floats, positions: NDArray[np.int64]) -> Floats:
        self.at("decided", self.steps.step)
        return np.asarray(ROWS[positions] * (1.0 + np.tanh(model)))

    def go(self, steps: int = STEPS) -> Floats:
        return self.trainer.run(
            np.zeros(4), steps, released=lambda step, model: self.at("released", step)
        )


def main(kafka: str, prefix: str, dataset: str, path: Path, point: str, step: int) -> None:
    """Train until killed, or to the end."""

    def at(reached: str, of: int) -> None:
        die_if((reached, of) == (point, step))

    with Turnstile(kafka, prefix=prefix) as turnstile:
        training = Training(turnstile, dataset, Checkpoint(path), at)
        watch_publishing(turnstile, lambda: training.run.step == step, point)
        training.go()


if __name__ == "__main__":
    main(*sys.argv[1:4], Path(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
