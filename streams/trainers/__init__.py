"""Private training that charges every user before every step, at no more gradient work than DP-SGD.

The names below are imported on first use, so that training with JAX does not need PyTorch.
``PrivacyEngine`` needs the extra ``torch``. Import ``streams.trainers.jax`` (the extra ``jax``) by
its own name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams.trainers.checkpoint import Checkpoint
    from streams.trainers.classifier import IndividualDPClassifier
    from streams.trainers.cohorts import rotating_cohort, sampled_cohort
    from streams.trainers.examples import ExamplesByUser
    from streams.trainers.loop import Descent, PrivateTrainer
    from streams.trainers.planning import noise_for_steps
    from streams.trainers.private_stop import PrivateStop
    from streams.trainers.steps import OpenStep, PrivateSteps
    from streams.trainers.torch import PrivacyEngine

_HOMES = {
    "Checkpoint": "checkpoint",
    "Descent": "loop",
    "ExamplesByUser": "examples",
    "IndividualDPClassifier": "classifier",
    "OpenStep": "steps",
    "PrivacyEngine": "torch",
    "PrivateSteps": "steps",
    "PrivateStop": "private_stop",
    "PrivateTrainer": "loop",
    "noise_for_steps": "planning",
    "rotating_cohort": "cohorts",
    "sampled_cohort": "cohorts",
}

__all__ = [
    "Checkpoint",
    "Descent",
    "ExamplesByUser",
    "IndividualDPClassifier",
    "OpenStep",
    "PrivacyEngine",
    "PrivateSteps",
    "PrivateStop",
    "PrivateTrainer",
    "noise_for_steps",
    "rotating_cohort",
    "sampled_cohort",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"streams.trainers.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
