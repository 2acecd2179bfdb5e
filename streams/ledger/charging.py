"""Operations of a run: charge users by their norms, enrol a roster, and charge it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import UNSET

from accounting.filters.roster_columns import MAX_STEPS
from streams.ledger.accrual import count_rosters, open_budgets_of, store_settled
from streams.ledger.datasets import check_hold
from streams.ledger.outputs import (
    Output,
    Place,
    answer_to,
    decision_of,
    enrolled_of,
    halted_of,
    odometer_output,
    roster_decision_of,
)
from streams.ledger.roster_members import MemberRows, changed_levels, cost_tables, enrolment
from streams.ledger.run_states import check_next_step, stored_decision, under_current_attempt
from streams.ledger.separation import check_roster
from streams.ledger.state import State
from streams.ledger.validation import check_balances, check_decision, check_request, count_of
from streams.records import Charge, ChargeRoster, Enrol, Enrolled, Reason, Rejection, encode
from streams.records.digests import charge_digest, roster_digest


def charge(state: State, place: Place, charge: Charge) -> list[Output]:
    """Charge users by their norms: the decision, and odometer records.

    Raises:
        Rejection: for the first reason that applies; nothing has changed.
    """
    budgets = open_budgets_of(state, charge.dataset)
    run = under_current_attempt(state.runs.get(charge.address), charge)
    check_hold(state, budgets, charge.address)
    separation = state.separations.get(charge.address, UNSET)
    digest = charge_digest(charge)
    if charge.step == run.step:
        return [answer_to(charge, encode(stored_decision(run, charge, digest)))]
    check_next_step(run, charge)
    users = count_of(charge.users)
    check_request(users)
    check_balances(users, budgets.orders)
    plan = budgets.plan(charge)
    check_decision(plan.users, clips=budgets.clips)
    slots, takes_part = plan.sought[0].slots, plan.norms > 0
    too_soon = None
    if separation is not UNSET:
        too_soon = state.participants.must_wait(charge.address, slots) & takes_part
    outcome = budgets.charge(plan, too_soon)
    for changes in outcome.changes:
        state.note(changes)
    if separation is not UNSET:
        taking_part = slots[outcome.admitted & takes_part]
        state.participants.take_part(charge.address, charge.step, separation, taking_part)
    store_settled(state, budgets.accounts)
    decision = encode(decision_of(charge, digest, budgets, outcome, place))
    state.runs[charge.address] = msgspec.structs.replace(
        run, step=charge.step, digest=digest, decision=decision, of_roster=False
    )
    return [
        answer_to(charge, decision),
        *(
            odometer_output(dataset, risen, place)
            for dataset, raised in outcome.raised
            for risen in raised
        ),
    ]


def enrol(state: State, place: Place, request: Enrol) -> Enrolled:
    """Append users to a run's roster.

    Raises:
        Rejection: for the first reason that applies; nothing has changed.
    """
    budgets = open_budgets_of(state, request.dataset)
    run = under_current_attempt(state.runs.get(request.address), request)
    check_hold(state, budgets, request.address)
    check_roster(request, state.separations.get(request.address, UNSET))
    known = state.rosters.get(request.address)
    rows = state.rosters.rows.get(request.address, MemberRows())
    terms, found = enrolment(request, known, rows, budgets, count_rosters(state, budgets))
    if known is None:
        state.rosters[request.address] = terms
        state.rosters.start(request.address, budgets)
    members = state.rosters.members[request.address]
    for accounts, sought in zip(budgets.accounts, found, strict=True):
        if len(sought.new_users):
            state.note(accounts.enrol(sought.new_users))
    slots = [sought.slots for sought in found]
    for rest in budgets.spend_erased(slots):
        state.note(rest)
    if len(slots[0]):
        added = members.add(slots, terms.levels)
        state.note_members(request.address, added)
    return enrolled_of(request, terms, members, members.digests(budgets), run, place)


def charge_roster(state: State, place: Place, charge: ChargeRoster) -> list[Output]:
    """Charge all members of a roster: the decision, HALTs, and odometer records.

    Raises:
        Rejection: for the first reason that applies; nothing has changed.
    """
    address = charge.address
    budgets = open_budgets_of(state, charge.dataset)
    run = under_current_attempt(state.runs.get(address), charge)
    check_hold(state, budgets, address)
    digest = roster_digest(charge)
    if charge.step == run.step:
        return [answer_to(charge, encode(stored_decision(run, charge, digest)))]
    check_next_step(run, charge)
    if run.roster_steps >= MAX_STEPS:
        detail = f"the roster has taken {MAX_STEPS} steps, and takes no more: use another run"
        raise Rejection(Reason.TOO_LARGE, detail)
    check_roster(charge, state.separations.get(address, UNSET))
    terms = state.rosters.get(address)
    if terms is None:
        detail = f"run {charge.run!r} has no roster: send enrol before charge-roster"
        raise Rejection(Reason.UNKNOWN_ROSTER, detail)
    members = state.rosters.members[address]
    asked, tables = cost_tables(charge, terms, members, budgets)
    rows, levels = changed_levels(charge, len(members), terms.levels)
    outcome, noted, changes = members.step(tables, rows, levels)
    if asked != terms:
        state.rosters[address] = asked
    for each in noted:
        state.note_members(address, each)
    for changed in changes:
        state.note(changed)
    store_settled(state, budgets.accounts, but=address)
    odometers = [
        odometer_output(accounts.policy.dataset, bound, place)
        for number, (accounts, risen) in enumerate(
            zip(budgets.accounts, outcome.raised, strict=True)
        )
        for bound in accounts.bounds_raised(
            members.slots_of(risen.positions)[number], risen.ticks_before
        )
    ]
    decision = encode(roster_decision_of(charge, digest, outcome, place))
    state.runs[address] = msgspec.structs.replace(
        run,
        step=charge.step,
        digest=digest,
        decision=decision,
        of_roster=True,
        roster_steps=run.roster_steps + 1,
    )
    halts: Iterable[Output] = ()
    if len(outcome.halted):
        halted = budgets.own.users_at(members.slots_of(outcome.halted)[0])
        exhausted = members.is_exhausted(outcome.halted)
        reasons = budgets.reasons(halted, outcome.refused_by)
        halts = halted_of(charge, halted, exhausted, reasons, budgets.names, place)
    return [answer_to(charge, decision), *halts, *odometers]
