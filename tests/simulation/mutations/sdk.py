"""Mutations of the SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import msgspec

from streams.records import RunOpened
from streams.sdk import attempt, dataset_requests, opening, roster, run
from tests.simulation.mutations.registry import Patches, mutation, replaced


@mutation
def parent_policies_not_compared() -> Patches:
    """A run is opened although partitions hold its parent under two policies."""
    real = opening.check_agreement

    def agree(dataset: str, replies: Mapping[int, Any], count: int) -> None:
        alone = {
            partition: msgspec.structs.replace(reply, outer=msgspec.UNSET)
            if isinstance(reply, RunOpened)
            else reply
            for partition, reply in replies.items()
        }
        real(dataset, alone, count)

    yield replaced(opening, "check_agreement", agree)


@mutation
def creation_everywhere_at_once() -> Patches:
    """A dataset is created in all partitions at once, and opened without a comparison."""

    def create(connection: Any, policy: Any, deadline: Any, delta: Any = None) -> Any:
        dataset_requests._created(connection, policy, range(connection.partitions), deadline)
        return policy

    def agree(dataset: str, replies: Mapping[int, Any], count: int) -> None:
        for reply in replies.values():
            if isinstance(reply, Exception):
                raise reply

    yield patch("streams.sdk.client.create", create)
    yield replaced(opening, "check_agreement", agree)


@mutation
def other_content_after_a_timeout() -> Patches:
    """The SDK allows other content for a step that may be decided."""
    yield replaced(attempt.Attempt, "_check_published", lambda self, asked: None)


@mutation
def interrupted_steps_sent_everywhere_at_once() -> Patches:
    """A step that was decided in some partitions is sent to all of them at once."""
    real = attempt.Attempt.decide

    def decide(self: Any, asked: Any, deadline: Any, *sent: Any) -> Any:
        decided, self.handed_back = self.handed_back, frozenset()
        step = self.step
        try:
            return real(self, asked, deadline, *sent)
        finally:
            if self.step == step:
                self.handed_back = decided

    yield replaced(attempt.Attempt, "decide", decide)


@mutation
def older_step_handed_back() -> Patches:
    """Hand the first of two unreleased steps back."""
    real = opening._next_step

    def next_step(name: str, opened: Any, released: int | None, at_once: int) -> int:
        step = real(name, opened, released, at_once)
        return step if released is None else released + 1

    yield replaced(opening, "_next_step", next_step)


@mutation
def attempts_not_checked() -> Patches:
    """A trainer releases a step without a check of its attempt."""
    yield replaced(run.Run, "check_attempt", lambda self, timeout=None: None)


@mutation
def levels_not_deferred() -> Patches:
    """Levels that are set during a roster step change the decision of that step."""
    real = roster.Roster.put_together

    def put_together(self: Any, step: int, priced: Any, parts: Any, *of: Any) -> Any:
        now = {
            p: part._replace(asked=part.asked._replace(levels=self._level[part.asked.rows]))
            for p, part in parts.items()
        }
        return real(self, step, priced, now, *of)

    yield replaced(roster.Roster, "put_together", put_together)


@mutation
def calls_accepted_during_a_step() -> Patches:
    """A run accepts other calls while a step is in progress."""
    real = attempt.Attempt.use

    def use(self: Any, call: Any, timeout: float | None = None) -> Any:
        is_ahead = self.state is attempt.StepState.AHEAD
        return real(self, attempt.Call.DECISION if is_ahead else call, timeout)

    yield replaced(attempt.Attempt, "use", use)
