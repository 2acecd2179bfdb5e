"""A trainer that is killed (SIGKILL) at a chosen point of a chosen step.

The norms follow from the model, and the model from the released steps. Both are in one file that is
replaced atomically, so that no step is lost. Points of a step:

    opened       the run is open, nothing is published
    half         one partition's part of the step is in Kafka
    published    all parts are
    decided      the charge has returned, nothing is released
    released     the checkpoint is written
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from kafka import KafkaProducer

from streams.sdk.client import Turnstile

USERS = np.arange(24)
STEPS = 5
NOISE = 4.0


def main(kafka: str, prefix: str, dataset: str, checkpoint: Path, point: str, at: int) -> None:
    """Train until killed, or to the end. The checkpoint is read after the run is opened."""
    with Turnstile(kafka, prefix=prefix) as turnstile:
        run = turnstile.run(dataset, "r", released=read(checkpoint)["released"])
        state = read(checkpoint)
        watch_publishing(turnstile.partitions, lambda: run.step == at, point)
        for step in range(run.step, STEPS):
            die_if(point == "opened" and step == at)
            norms = norms_of(state["model"])
            decision = run.charge(USERS, norms, noise_stddev=NOISE)
            die_if(point == "decided" and step == at)
            released = {"step": decision.step, "norms": norms.tolist()}
            released["admitted"] = decision.admitted.tolist()
            state = {
                "released": decision.step,
                "model": state["model"] + float(decision.granted.sum()),
                "history": [*state["history"], released],
            }
            write(checkpoint, state)
            die_if(point == "released" and step == at)


def norms_of(model: float) -> np.ndarray:
    return np.random.default_rng(int(1e6 * model)).uniform(0.1, 2.0, len(USERS))


def read(checkpoint: Path) -> dict[str, Any]:
    return json.loads(checkpoint.read_text())


def write(checkpoint: Path, state: dict[str, Any]) -> None:
    fresh = checkpoint.with_suffix(".new")
    fresh.write_text(json.dumps(state))
    fresh.replace(checkpoint)


def watch_publishing(partitions: int, is_now: Any, point: str) -> None:
    """Kill this process when the broker has this many parts of the step."""
    parts = {"half": 1, "published": partitions}.get(point)
    send, sent = KafkaProducer.send, 0

    def send_and_die(producer: KafkaProducer, *arguments: Any, **options: Any) -> Any:
        nonlocal sent
        future = send(producer, *arguments, **options)
        if is_now() and parts is not None:
            sent += 1
            if sent == parts:
                producer.flush()
                die_if(True)
        return future

    KafkaProducer.send = send_and_die


def die_if(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:4], Path(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
