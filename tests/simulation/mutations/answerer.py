"""Mutations of the answerer."""

from __future__ import annotations

from streams.answerer import answering
from tests.simulation.mutations.registry import Patches, mutation, replaced


@mutation
def windows_of_other_runs_answered_again() -> Patches:
    """An answerer does not check whether another run has answered a window."""
    yield replaced(answering.Answering, "_check_unanswered", lambda *_: None)
