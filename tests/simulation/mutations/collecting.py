"""Mutations of collections of norms, and of answers in parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from streams.ledger import charging, collecting, datasets, ledger, tracked
from streams.records import Reason
from tests.simulation.mutations.registry import Patches, mutation, replaced


@mutation
def collections_not_dropped() -> Patches:
    """A collection stays after its step was decided."""
    yield replaced(collecting.Collected, "drop", lambda *_: None)


@mutation
def late_norms_accepted() -> Patches:
    """A norm is collected for a step that was decided."""
    real = charging.collect

    def collect(request: Any, run: Any, *others: Any) -> Any:
        return real(request, replace(run, step=min(run.step, request.step - 1)), *others)

    yield replaced(charging, "collect", collect)


@mutation
def changed_norms_accepted() -> Patches:
    """The last of two norms of a user counts."""
    real = charging.collect

    def changing(rejected: Iterator[Any], collected: Any) -> Iterator[Any]:
        for event, rejection in rejected:
            if rejection.reason is not Reason.NORM_CHANGED:
                yield event, rejection
                continue
            collected.erase(event.dataset, event.user)
            collected.add(collecting.step_of(event), event.user, event.norm)

    def collect(request: Any, run: Any, terms: Any, collected: Any, *others: Any) -> Any:
        return changing(real(request, run, terms, collected, *others), collected)

    yield replaced(charging, "collect", collect)


@mutation
def collections_not_merged() -> Patches:
    """Collections are not merged into pages."""
    real = tracked.Tracked.take_page

    def take_page(self: Any, name: str) -> bytes | None:
        page = real(self, name)
        return None if self.kind == "collected" else page

    yield replaced(tracked.Tracked, "take_page", take_page)


@mutation
def erased_users_stay_collected() -> Patches:
    """The norms of an erased user stay in the collections."""
    yield replaced(collecting.Collected, "erase", lambda *_: None)


@mutation
def too_many_norms_charged() -> Patches:
    """A step is decided although more norms were sent than a partition collects."""
    yield replaced(charging, "check_number", lambda *_: None)


@mutation
def norms_of_other_terms_kept() -> Patches:
    """A norm that was collected under other terms is charged."""
    real = ledger.open_run

    def open_run(*about: Any) -> Any:
        with replaced(collecting.Collected, "drop", lambda *_: None):
            return real(*about)

    yield replaced(ledger, "open_run", open_run)


@mutation
def terms_changed_after_the_first_step() -> Patches:
    """A new attempt sets the terms of a run that has been charged."""
    yield replaced(datasets, "takes_terms", lambda *_, **__: True)


@mutation
def last_parts_not_published() -> Patches:
    """The last of several parts of an answer is not published."""
    real = charging.in_parts

    def in_parts(*about: Any) -> Any:
        parts = real(*about)
        return parts[: max(1, len(parts) - 1)]

    yield replaced(charging, "in_parts", in_parts)
