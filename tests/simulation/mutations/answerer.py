"""Mutations of the answerer."""

from __future__ import annotations

from streams.answerer import window_answering
from tests.simulation.mutations.registry import Patches, mutation, replaced


@mutation
def windows_of_other_runs_answered_again() -> Patches:
    """An answerer does not check whether another run has answered a window."""
    yield replaced(window_answering.Answering, "_check_unanswered", lambda *_: None)


@mutation
def files_of_runs_not_compared() -> Patches:
    """An answerer continues a run with another file."""
    yield replaced(window_answering.Answering, "_check_same", lambda *_: None)
