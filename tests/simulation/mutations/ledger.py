"""Mutations of the ledger."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np

from accounting.filters import account_terms, payment, recurring
from streams.ledger import (
    accounts,
    accrual,
    budgets,
    charging,
    datasets,
    erasure,
    ledger,
    outputs,
    rule,
    run_states,
    separation,
    tracked,
    validation,
)
from tests.simulation.mutations.registry import Patches, mutation, replaced


@mutation
def repeated_step_charged_again() -> Patches:
    """A repeated step is charged again."""
    real = charging.charge

    def charge(held: Any, place: Any, request: Any) -> Any:
        key = request.dataset, request.run
        known = held.runs.get(key)
        if known is not None and known.step == request.step and not known.closed:
            held.runs[key] = msgspec.structs.replace(known, step=known.step - 1)
        return real(held, place, request)

    yield replaced(ledger, "charge", charge)


def _granted_by_first(payments: Any, asked: Any, *, clip: bool) -> Any:
    granted, refused_by = payment.grant(payments[:1], asked, clip=clip)
    less = np.flatnonzero(granted < asked)
    for outer in payments[1:]:
        outer.charge_for(less, granted[less])
    return granted, refused_by


@mutation
def parent_budgets_not_checked() -> Patches:
    """A charge by norms is admitted if the dataset's own budget suffices."""
    yield replaced(budgets, "grant", _granted_by_first)


@mutation
def parent_grants_not_applied() -> Patches:
    """A user whom all budgets admit is granted the norm that the dataset's own budget allows."""

    def grant(payments: Any, asked: Any, *, clip: bool) -> Any:
        granted, refused_by = payment.grant(payments, asked, clip=clip)
        less = np.flatnonzero((granted > 0) & (granted < asked))
        granted[less] = payments[0].highest(less)
        return granted, refused_by

    yield replaced(budgets, "grant", grant)


@mutation
def only_first_parents_charged() -> Patches:
    """A charge draws on the budgets of each dataset's first parent, and not of the others."""

    def with_ancestors(self: Any, *names: str) -> list[str]:
        return budgets._closure(names, lambda name: (self[name,].parents or ())[:1])

    yield replaced(budgets.Policies, "with_ancestors", with_ancestors)


@mutation
def budgets_charged_separately() -> Patches:
    """Each budget is charged the norm that it would grant alone."""

    real = rule.NormPayment.charge_for

    def charge_for(self: Any, users: Any, amounts: Any) -> None:
        real(self, users, np.where(amounts > 0, self.highest(users), amounts))

    yield replaced(rule.NormPayment, "charge_for", charge_for)


@mutation
def parent_levels_not_checked() -> Patches:
    """A roster member is granted the level that the dataset's own budget allows."""

    def grant(payments: Any, asked: Any, *, clip: bool) -> Any:
        granted = _granted_by_first if clip else payment.grant
        return granted(payments, asked, clip=clip)

    yield replaced(recurring, "grant", grant)


@mutation
def erased_users_begin_again() -> Patches:
    """A new id is not compared with the ids of erased users."""
    yield replaced(erasure.ErasedUsers, "known_as", lambda self, users, *_: users)


@mutation
def erased_ids_not_replaced() -> Patches:
    """A loaded state has the ids of its pages, although users were erased since."""
    yield replaced(erasure.ErasedUsers, "_moves", lambda self, address, before, after: None)


@mutation
def reserves_rounded_down() -> Patches:
    """The share of a budget that has to remain is rounded down to whole units."""

    def share_of(self: Any, share: float, order: Any) -> Any:
        kept = tuple(math.floor(units * Fraction(share)) for units in self.budgets)
        return replace(self, budgets=kept).units_of(order)[0]

    yield replaced(account_terms.AccountTerms, "share_of", share_of)


@mutation
def last_units_missed() -> Patches:
    """A recurring step that spends a budget to the last unit is not noticed."""
    real = account_terms.LevelPayment.quiet_steps

    def quiet_steps(self: Any) -> Any:
        with replaced(self, "_room", self._room + 1):
            return real(self)

    yield replaced(account_terms.LevelPayment, "quiet_steps", quiet_steps)


@mutation
def hashes_of_erased_users_published() -> Patches:
    """HALTs have the keyed hash of an erased user, which depends on the keys of the worker."""
    for module in (outputs, validation):
        yield replaced(module, "published", lambda user: user)


@mutation
def unknown_erasure_keys_accepted() -> Patches:
    """A worker decides although users were erased with a key that it lacks."""
    real = erasure.KeysInUse.names

    def names(self: Any, user: Any) -> Iterator[str]:
        known = [address for address in self if address[0] in self.ring]
        with replaced(type(self), "__iter__", lambda _: iter(known)):
            found = list(real(self, user))
        yield from found

    yield replaced(erasure.KeysInUse, "_moves", lambda *_: None)
    yield replaced(erasure.KeysInUse, "names", names)


@mutation
def closed_datasets_charged() -> Patches:
    """A closed dataset is charged."""
    for module in (accrual, datasets):
        yield replaced(module, "check_open", lambda *_: None)


@mutation
def erased_members_admitted() -> Patches:
    """A roster member is still admitted after its erasure."""
    yield replaced(accounts.Accounts, "spend_the_rest", lambda self, slot: self.enrol([]))


@mutation
def separation_not_enforced() -> Patches:
    """A user may participate in consecutive steps."""

    def must_wait(self: Any, run: Any, slots: Any) -> Any:
        return np.zeros(len(slots), dtype=np.bool_)

    yield replaced(separation.Participants, "must_wait", must_wait)


@mutation
def participations_not_merged() -> Patches:
    """Participations are not merged into pages."""

    def take_page(self: Any, name: str) -> None:
        tracked.Tracked.take_page(self, name)

    yield replaced(separation.Participants, "take_page", take_page)


@mutation
def accrued_charges_of_other_datasets_not_stored() -> Patches:
    """Accrued charges of other datasets' rosters are stored only for the budgets charged now."""
    real = accrual.store_settled

    def store_settled(held: Any, *arguments: Any, **options: Any) -> None:
        before = len(held._accounts)
        real(held, *arguments, **options)
        del held._accounts[before:]

    for module in (charging, datasets):
        yield replaced(module, "store_settled", store_settled)


@mutation
def older_attempts_charge() -> Patches:
    """A fenced trainer can charge."""
    real = run_states.under_current_attempt

    def under(known: Any, request: Any) -> Any:
        if known is not None and request.attempt < known.attempt:
            request = msgspec.structs.replace(request, attempt=known.attempt)
        return real(known, request)

    for module in (charging, datasets):
        yield replaced(module, "under_current_attempt", under)


@mutation
def levels_charged_twice() -> Patches:
    """A step that is stored by its levels is charged again to a page that contains it."""
    yield replaced(accounts.Accounts, "_behind", lambda *_: None)


@mutation
def holds_not_checked_at_a_charge() -> Patches:
    """A run charges a budget that another run has taken over."""
    yield replaced(charging, "check_hold", lambda *_: None)


@mutation
def budgets_taken_over_unasked() -> Patches:
    """Opening a run takes the budget over from the run that holds it."""
    real = datasets.holds_to_take

    def holds_to_take(state: Any, taken: Any, request: Any, before: Any, run: Any) -> Any:
        return real(state, taken, msgspec.structs.replace(request, take_over=True), before, run)

    yield replaced(datasets, "holds_to_take", holds_to_take)


@mutation
def budgets_taken_over_by_repeated_openings() -> Patches:
    """A repeated opening takes a budget back that another run has taken over."""
    real = datasets.holds_to_take

    def holds_to_take(state: Any, taken: Any, request: Any, _: Any, run: Any) -> Any:
        return real(state, taken, request, None, run)

    yield replaced(datasets, "holds_to_take", holds_to_take)


@mutation
def budgets_freed_by_other_runs() -> Patches:
    """Closing a run frees the budget, even if another run holds it."""

    def release_holds(state: Any, address: Any) -> None:
        for name in state.policies.with_ancestors(address[0]):
            if (name,) in state.holds:
                del state.holds[name,]

    yield replaced(datasets, "release_holds", release_holds)


@mutation
def one_of_several_budgets_held() -> Patches:
    """A run holds the first of the outermost budgets that it charges."""
    real = datasets._not_held

    def not_held(state: Any, taken: Any, address: Any) -> Any:
        first = taken.outermost[0].policy.dataset
        lacking = real(state, taken, address)
        return {name: holder for name, holder in lacking.items() if name == first}

    yield replaced(datasets, "_not_held", not_held)


@mutation
def shares_not_added_up() -> Patches:
    """A share fits into a budget, regardless of the other shares."""
    real = datasets.check_share

    def check_share(policy: Any, whole: Any, _: Any) -> None:
        real(policy, whole, [])

    yield replaced(datasets, "check_share", check_share)
