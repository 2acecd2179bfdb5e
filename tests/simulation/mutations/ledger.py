"""What a record does to a partition."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import msgspec
import numpy as np

from streams.ledger import (
    access,
    accounts,
    apart,
    arrears,
    budgets,
    charging,
    forgetting,
    forgotten,
    ledger,
    lifecycle,
    moving,
    runs,
    tracked,
)
from tests.simulation.mutations.registry import Patches, mutation, replaced


@mutation
def repeated_step_charged_again() -> Patches:
    """A step that comes again is decided anew."""
    real = charging.charge

    def charge(held: Any, place: Any, request: Any) -> Any:
        key = request.dataset, request.run
        known = held.runs.get(key)
        if known is not None and known.step == request.step and not known.closed:
            held.runs[key] = msgspec.structs.replace(known, step=known.step - 1)
        return real(held, place, request)

    yield replaced(ledger, "charge", charge)


@mutation
def outer_budgets_not_asked() -> Patches:
    """A charge by norms is admitted where the budget of its own dataset is large enough."""

    def allowed(self: Any, plans: Any) -> Any:
        admits = self.own.admits(plans[0])
        return admits, np.zeros(len(admits), dtype=np.uint8)

    yield replaced(budgets.Budgets, "_allowed", allowed)


@mutation
def forgotten_users_begin_anew() -> Patches:
    """Nobody asks whether an id that is new is that of somebody who was forgotten."""
    yield replaced(forgotten.Forgotten, "known_as", lambda self, users, outermost: users)


@mutation
def names_not_put_back() -> Patches:
    """Who loads a state has the ids of its pages, whoever was forgotten since."""
    yield replaced(forgotten.Forgotten, "_moves", lambda self, address, before, after: None)


@mutation
def closed_datasets_charged() -> Patches:
    """What is charged to a dataset does not depend on whether it was closed."""
    for module in (access, lifecycle):
        yield replaced(module, "check_open", lambda *_: None)


@mutation
def rest_not_spent() -> Patches:
    """A member of a roster goes on being admitted after it was forgotten."""
    yield replaced(accounts.Accounts, "spend_the_rest", lambda self, slot: self.enrol([]))


@mutation
def separation_not_enforced() -> Patches:
    """Who took part in a step may take part in the next one."""

    def have_to_wait(self: Any, run: Any, slots: Any) -> Any:
        return np.zeros(len(slots), dtype=np.bool_)

    yield replaced(apart.Participants, "have_to_wait", have_to_wait)


@mutation
def participations_forgotten_at_a_compaction() -> Patches:
    """Of those who took part there are changes and no pages."""

    def take_page(self: Any, name: str) -> None:
        tracked.Tracked.take_page(self, name)

    yield replaced(apart.Participants, "take_page", take_page)


@mutation
def arrears_collected_elsewhere_not_kept() -> Patches:
    """What members of another dataset's roster owed is kept of the budgets charged now alone."""
    real = arrears.note_taken

    def note_taken(held: Any, *arguments: Any, **options: Any) -> None:
        before = len(held._accounts)
        real(held, *arguments, **options)
        del held._accounts[before:]

    for module in (charging, forgetting):
        yield replaced(module, "note_taken", note_taken)


@mutation
def older_attempts_charge() -> Patches:
    """A trainer that was fenced goes on."""
    real = runs.under_current_attempt

    def under(known: Any, request: Any) -> Any:
        if known is not None and request.attempt < known.attempt:
            request = msgspec.structs.replace(request, attempt=known.attempt)
        return real(known, request)

    for module in (charging, lifecycle):
        yield replaced(module, "under_current_attempt", under)


@mutation
def arrivals_not_awaited() -> Patches:
    """A dataset is charged in a new log before all is there of what was spent in the old one."""
    for module in (access, forgetting, lifecycle):
        yield replaced(module, "check_arrived", lambda *_: None)


@mutation
def balances_not_added() -> Patches:
    """Who comes from another log has spent nothing."""
    real = moving.numbers_of

    def numbers_of(*arguments: Any) -> dict[str, Any]:
        numbers = real(*arguments)
        return {name: np.full_like(values, name == "rungs") for name, values in numbers.items()}

    yield replaced(moving, "numbers_of", numbers_of)


@mutation
def moved_datasets_charged() -> Patches:
    """The old log goes on with a dataset, and its runs, that a new one has taken."""
    real = lifecycle.close_dataset

    def close_dataset(held: Any, place: Any, request: Any) -> Any:
        moves = request.moves_to is not msgspec.UNSET
        with replaced(lifecycle, "_end_run", lambda *_: None) if moves else ExitStack():
            return real(held, place, request)

    check = access.check_open

    def check_open(held: Any, dataset: str) -> None:
        if (dataset,) not in held.moved:
            check(held, dataset)

    yield replaced(ledger, "close_dataset", close_dataset)
    for module in (access, lifecycle):
        yield replaced(module, "check_open", check_open)


@mutation
def levels_charged_twice() -> Patches:
    """A step that is kept by its levels is charged again on a page that has it already."""
    yield replaced(accounts.Accounts, "_behind", lambda *_: None)
