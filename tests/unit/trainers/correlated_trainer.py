"""A training with correlated noise that kills itself: ``python -m`` this module.

Arguments: a folder, the seed of the noise, and where to end, such as ``charged 3`` or nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

from accounting import square_root_column
from streams import Turnstile
from streams.trainers import Checkpoint, CorrelatedSteps

BANDS, STEPS, SIZE, NOISE = 4, 12, 3, 8.0


def train(folder: Path, seed: int, end: str) -> None:
    """Train on nothing, and keep every released row in the checkpoint."""

    def reached(point: str) -> None:
        if point == end:
            os.kill(os.getpid(), signal.SIGKILL)

    with Turnstile.open(folder / "budgets.db") as turnstile:
        steps = CorrelatedSteps(
            turnstile.run("phones", "night-7", min_separation=BANDS),
            np.arange(40),
            column=square_root_column(BANDS),
            clip_norm=1.0,
            noise_multiplier=NOISE,
            expected_batch=8.0,
            steps=STEPS,
            not_private_generator=np.random.default_rng(seed),
        )
        checkpoint = Checkpoint(folder / "night-7.npz")
        saved = steps.resume(checkpoint)
        released = {} if saved is None else {k: v for k, v in saved.arrays.items() if k.isdigit()}
        while steps.step < STEPS:
            step = steps.begin()
            reached(f"charged {step.step}")
            step.add(np.zeros((len(step.positions), SIZE)))
            released[str(step.step)] = step.release(SIZE)
            reached(f"released {step.step}")
            steps.save(checkpoint, released)
            reached(f"saved {step.step}")


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), " ".join(sys.argv[3:]))
