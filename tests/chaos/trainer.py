"""A trainer in its own process, which is killed at any time.

It appends a line per released step to a file and syncs the file before it charges the next step.
The content of a step follows from its number, so a restarted trainer charges the same.

    TURNSTILE_KAFKA=... python -m tests.chaos.trainer FILE
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from kafka.errors import KafkaError

from streams.config import Config
from streams.sdk.client import Turnstile
from streams.sdk.errors import TurnstileError
from tests.chaos import clock

DATASET, RUN = "killed", "training"
USERS = np.arange(60)
NOISE = 2.0
_PACE = 0.05
_TIMEOUT = 4.0


def main(file: Path) -> None:
    """Train until the process is killed."""
    clock.follow()
    while True:
        try:
            with Turnstile(config=Config.load(timeout=_TIMEOUT)) as turnstile:
                turnstile.create_dataset(DATASET, measure="zcdp", budget=40.0)
                _train(turnstile, file)
        except (TurnstileError, KafkaError) as error:
            print(f"{error!r}; again", flush=True)


def _train(turnstile: Turnstile, file: Path) -> None:
    done = list(released(file))
    run = turnstile.run(DATASET, RUN, released=len(done) - 1)
    with file.open("r+b" if file.exists() else "w+b") as lines:
        lines.truncate(sum(len(line) for line in file.read_bytes().splitlines(True)[: len(done)]))
        lines.seek(0, os.SEEK_END)
        while True:
            decision = run.charge(USERS, norms_of(run.step), noise_stddev=NOISE)
            line = {"step": decision.step, "halted": USERS[decision.halted].tolist()}
            lines.write(json.dumps(line).encode() + b"\n")
            lines.flush()
            os.fsync(lines.fileno())
            time.sleep(_PACE)


def norms_of(step: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the users' norms of a step."""
    return np.random.default_rng(step).random(len(USERS))


def released(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the released steps in order; skip an incomplete last line."""
    if file.exists():
        for line in file.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield json.loads(line)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
