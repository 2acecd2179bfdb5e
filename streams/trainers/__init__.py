"""Private training that charges every user before every step, at no more gradient work than DP-SGD.

``PrivacyEngine`` needs the extra ``torch``, and ``IndividualDPClassifier`` the extra ``sklearn``:
both are imported on first use. Import ``streams.trainers.jax`` (the extra ``jax``) by its own name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streams.trainers.checkpoint import Checkpoint
from streams.trainers.cohorts import rotating_cohort
from streams.trainers.correlated import CorrelatedSteps
from streams.trainers.examples import ExamplesByUser
from streams.trainers.loop import Descent, PrivateTrainer
from streams.trainers.planning import noise_for_steps
from streams.trainers.private_stop import PrivateStop
from streams.trainers.steps import OpenStep, PrivateSteps

if TYPE_CHECKING:
    from streams.trainers.classifier import IndividualDPClassifier
    from streams.trainers.torch import PrivacyEngine

__all__ = [
    "Checkpoint",
    "CorrelatedSteps",
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
]


def __getattr__(name: str) -> object:
    if name == "PrivacyEngine":
        from streams.trainers.torch import PrivacyEngine

        return PrivacyEngine
    if name == "IndividualDPClassifier":
        from streams.trainers.classifier import IndividualDPClassifier

        return IndividualDPClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
