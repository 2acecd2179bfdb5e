"""Operations of a run: charge users by their norms, enrol a roster, and charge it.

Each raises ``Rejection`` for the first reason that applies, and then nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from accounting.filters.roster_columns import MAX_STEPS
from streams.ledger.accrual import count_rosters, open_budgets_of, store_settled
from streams.ledger.budgets import Budgets
from streams.ledger.collecting import (
    check_charged,
    check_not_collecting,
    check_number,
    collect,
    most_events,
    names_erased,
    step_of,
    with_collected,
)
from streams.ledger.datasets import check_hold
from streams.ledger.outputs import (
    Output,
    Place,
    answer,
    halted_of,
    in_parts,
    odometer_output,
    published_halts,
    reject,
)
from streams.ledger.roster_members import MemberRows, changed_levels, cost_tables, enrolment
from streams.ledger.run_states import (
    RunState,
    check_next_step,
    stored_decision,
    under_current_attempt,
)
from streams.ledger.separation import check_roster
from streams.ledger.state import State
from streams.ledger.validation import (
    check_balances,
    check_charge,
    check_decision,
    check_request,
    count_of,
)
from streams.records import (
    Charge,
    ChargeRoster,
    Decision,
    Enrol,
    Enrolled,
    NormEvent,
    NormEvents,
    Reason,
    Rejection,
    RosterDecision,
    encode,
    encode_output,
)
from streams.records.digests import charge_digest, roster_digest
from streams.records.packing import pack_bits, pack_norms, pack_positions


def charge(state: State, place: Place, charge: Charge) -> list[Output]:
    """Charge users by their norms: the decision, and odometer records."""
    budgets, run = _current(state, charge)
    digest = charge_digest(charge)
    if charge.step == run.step:
        decision = stored_decision(run, charge, digest)
        return in_parts(charge, decision, encode_output(decision))
    check_next_step(run, charge)
    terms = state.collecting.get(charge.address)
    check_charged(charge, terms)
    count = count_of(charge.users)
    check_request(count)
    check_balances(count, budgets.orders)
    if charge.collected is True and terms is not None:
        charge = with_collected(charge, terms, state.collected)
    held = [(accounts.policy, accounts.first_user) for accounts in budgets.accounts]
    users, norms, mechanism = check_charge(charge, held)
    users = budgets.known_as(users)
    sought = [accounts.seek(users) for accounts in budgets.accounts]
    if charge.collected is True:
        check_number(step_of(charge), state.collected, most_events(budgets))
    else:
        check_decision(users, clips=budgets.clips)
    slots, takes_part, too_soon = sought[0].slots, norms > 0, None
    separation = state.separations.get(charge.address, UNSET)
    if separation is not UNSET:
        too_soon = state.participants.must_wait(charge.address, slots) & takes_part
    outcome = budgets.charge(users, norms, mechanism, sought, charge.reserve or 0.0, too_soon)
    for changes in outcome.changes:
        state.note(changes)
    state.worst_cases.add_charge(budgets, mechanism, charge.clip_norm)
    admitted = outcome.admitted
    if separation is not UNSET:
        taking_part = slots[admitted & takes_part]
        state.participants.take_part(charge.address, charge.step, separation, taking_part)
    store_settled(state, budgets.accounts)
    collected: dict[str, Any] = {}
    if charge.collected is True:
        allowed = norms.copy()
        allowed[outcome.clipped] = outcome.granted
        collected["collected"] = users.select(np.flatnonzero(admitted)).pack()
        collected["norms"] = pack_norms(allowed[admitted])
    if terms is not None:
        state.collected.drop(charge.address, charge.step)
    decision = answer(
        Decision,
        charge,
        place,
        digest=digest,
        users=len(users),
        admitted=pack_bits(admitted),
        exhausted=pack_bits(outcome.exhausted),
        halted=published_halts(users.select(np.flatnonzero(~admitted)), outcome.reasons),
        reasons=outcome.reasons.tobytes(),
        budgets=budgets.names,
        clipped=outcome.clipped.astype("<u4").tobytes(),
        granted=pack_norms(outcome.granted),
        **collected,
    )
    odometers = (
        odometer_output(state.policies[dataset,], risen, place)
        for dataset, raised in outcome.raised
        for risen in raised
    )
    return [*_decided(state, run, charge, decision), *odometers]


def collect_norms(
    state: State, place: Place, request: NormEvent | NormEvents, value: bytes
) -> list[Output]:
    """Collect norm events: one reject for each that does not count, and nothing for the others."""
    budgets = open_budgets_of(state, request.dataset)
    run = under_current_attempt(state.runs.get(request.address), request)
    home, terms = (place.partition, state.partitions), state.collecting.get(request.address)
    return [
        reject(
            value if event is request else encode(event),
            event,
            rejection,
            run.attempt,
            place,
            names_erased=names_erased(event, state.policies),
        )
        for event, rejection in collect(request, run, terms, state.collected, budgets, home)
    ]


def enrol(state: State, place: Place, request: Enrol) -> list[Output]:
    """Append users to a run's roster."""
    budgets, run = _current(state, request)
    check_not_collecting(request, state.collecting.get(request.address))
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
        state.note_members(request.address, members.add(slots, terms.levels))
    count, (digests, erased) = len(members), members.digests(budgets)
    enrolled = answer(
        Enrolled,
        request,
        place,
        last_step=run.step,
        members=count,
        digests=digests,
        clip_norm=terms.clip_norm,
        grid=terms.levels,
        levels=members.levels.tobytes(),
        granted=members.granted.tobytes(),
        halted=pack_positions(members.halted, count),
        exhausted=pack_positions(members.exhausted, count),
        cost_table_digest=terms.cost_table_digest,
        decision=run.decision if run.of_roster else b"",
        erased=pack_positions(erased, count) if len(erased) else UNSET,
    )
    return in_parts(request, enrolled, encode(enrolled))


def charge_roster(state: State, place: Place, charge: ChargeRoster) -> list[Output]:
    """Charge all members of a roster: the decision, HALTs, and odometer records."""
    address = charge.address
    budgets, run = _current(state, charge)
    digest = roster_digest(charge)
    if charge.step == run.step:
        decision = stored_decision(run, charge, digest)
        return in_parts(charge, decision, encode_output(decision))
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
    state.worst_cases.add_roster_step(budgets, members)
    for each in noted:
        state.note_members(address, each)
    for changed in changes:
        state.note(changed)
    store_settled(state, budgets.accounts, but=address)
    odometers = [
        odometer_output(accounts.policy, bound, place)
        for number, (accounts, risen) in enumerate(
            zip(budgets.accounts, outcome.raised, strict=True)
        )
        for bound in accounts.bounds_raised(
            members.slots_of(risen.positions)[number], risen.ticks_before
        )
    ]
    decision = answer(
        RosterDecision,
        charge,
        place,
        digest=digest,
        members=charge.members,
        halted=pack_positions(outcome.halted, charge.members),
        readmitted=pack_positions(outcome.readmitted, charge.members),
        exhausted=pack_positions(outcome.exhausted, charge.members),
        regranted=pack_positions(outcome.regranted, charge.members),
        granted=outcome.levels.tobytes(),
    )
    halts: Iterable[Output] = ()
    if len(outcome.halted):
        halted = budgets.own.users_at(members.slots_of(outcome.halted)[0])
        exhausted = members.is_exhausted(outcome.halted)
        reasons = budgets.reasons(halted, outcome.refused_by)
        halts = halted_of(charge, halted, exhausted, reasons, budgets.names, place)
    return [*_decided(state, run, charge, decision), *halts, *odometers]


def _current(state: State, request: Charge | ChargeRoster | Enrol) -> tuple[Budgets, RunState]:
    """Return the budgets and the run of a request that may charge them."""
    budgets = open_budgets_of(state, request.dataset)
    run = under_current_attempt(state.runs.get(request.address), request)
    check_hold(state, budgets, request.address)
    return budgets, run


def _decided(
    state: State,
    run: RunState,
    charge: Charge | ChargeRoster,
    decision: Decision | RosterDecision,
) -> list[Output]:
    """Store and return the decision about a step: the same is returned if it is sent again."""
    of_roster, packed = isinstance(charge, ChargeRoster), encode_output(decision)
    state.runs[charge.address] = msgspec.structs.replace(
        run,
        step=charge.step,
        digest=decision.digest,
        decision=packed,
        of_roster=of_roster,
        roster_steps=run.roster_steps + of_roster,
    )
    return in_parts(charge, decision, packed)
