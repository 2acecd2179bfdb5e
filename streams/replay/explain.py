"""Explains what happened to one user: every charge, every HALT and its reason, in log order.

An explanation is for that user only, so it contains no data about others: no ids and no counts. An
unknown user gets the same empty answer as one who was never charged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import UNSET

from accounting import PoissonGaussian
from streams.ledger.accounts import Accounts
from streams.ledger.budgets import Budgets
from streams.ledger.collecting import step_of
from streams.ledger.ledger import Ledger
from streams.ledger.tracked import Address
from streams.ledger.validation import mechanism_of
from streams.operations.guarantees import Amounts, Units, budget_epsilon
from streams.records import (
    DELTA,
    ERASED,
    Charge,
    ChargeRoster,
    Decision,
    Enrol,
    Erase,
    Erased,
    NormEvent,
    NormEvents,
    User,
    decode_answer,
    halt_reason,
)
from streams.records.packing import unpack_bits, unpack_norms
from streams.records.users import UserIds, partitions_of
from streams.replay.archive import Archive, StoredHead, UnreadableService
from streams.replay.decision_explanation import (
    DecidedUser,
    RosterReasons,
    decided_members,
    decided_user,
)
from streams.replay.log_replay import Applied, LogReplay
from streams.sdk.decisions import DecisionArrays

if TYPE_CHECKING:
    from streams.answerer.published_answers import AnswerRecord

_SAMPLED = PoissonGaussian(1.0, 0.5)
What = Literal["earlier", "enrolled", "charged", "clipped", "halted", "erased"]


@dataclass(frozen=True)
class Share:
    """The effect of an event on one budget.

    Numbers are in the measure's unit, one for each order that counts.

    Attributes:
        dataset: the dataset with this budget.
        unit: the unit of the numbers.
        power: the power of the numbers that adds up: 2 for mu, otherwise 1.
        orders: the Rényi orders; empty if the measure has none.
        tightest: the index of the order at which the largest share of the budget is spent.
        asked: the cost of the step at the requested norm.
        cost: the charged cost.
        spent: the spending after the event.
        budget: at the same orders, rounded down; empty if the user has no Rényi order yet.
        left: what is left of the budget; empty if the user has no Rényi order yet.
        epsilon: the any-time epsilon of what was spent; None from the first sampled step on, unless
            levels are known to be public.
        budget_epsilon: the epsilon of the whole budget. Without a delta, both are None, unless the
            measure is pure DP, which needs none.
    """

    dataset: str
    measure: str
    unit: str
    power: int
    orders: list[float]
    tightest: int
    asked: list[float]
    cost: list[float]
    spent: list[float]
    budget: list[float]
    left: list[float]
    epsilon: float | None
    budget_epsilon: float | None


@dataclass(frozen=True)
class AccountEvent:
    """One event of a user's account.

    Attributes:
        what: "earlier" sums up the deleted records before a snapshot.
        time: the producer's time in seconds since 1970; NaN for an earlier event.
        norm: the requested norm; for an enrolment, that of the highest level.
        granted: the admitted norm; 0 if the user was halted.
        level: the norm level, if it is a roster step.
        query: the query that the step answered; None if no answer is known.
        start: the start of the query's window, or of the block whose answers were corrected.
        end: its end.
        is_correction: whether the step corrected the answers of a block.
        refused_by: the dataset with too little left in its budget, if that is the reason for the
            HALT. None if a nested dataset's roster published the HALT before the log begins.
        reason: why the user was halted, as in ``Halt.reason``. None if the user was not, or if a
            nested dataset's roster published the HALT before the log begins.
        erased: whether the user was erased.
        exhausted: whether nothing is left, so that no step with a cost is admitted any more.
    """

    time: float
    partition: int
    offset: int
    dataset: str
    run: str
    step: int | None
    what: What
    norm: float = 0.0
    granted: float = 0.0
    level: int | None = None
    mechanism: str | None = None
    scale: float | None = None
    sampling_rate: float | None = None
    refused_by: str | None = None
    reason: str | None = None
    erased: bool = False
    exhausted: bool = False
    query: str | None = None
    start: str | None = None
    end: str | None = None
    is_correction: bool = False
    budgets: tuple[Share, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """The events of a user in log order, and the stored heads of the log."""

    events: Sequence[AccountEvent]
    heads: Sequence[StoredHead]


def explain(
    archive: Archive,
    user: User,
    *,
    delta: float | None = None,
    dataset: str | None = None,
) -> Explanation:
    """Return what happened to one user.

    The epsilon of what was spent holds if the user's norm levels and admissions follow from the
    released outputs and the user's own data. After a sampled step they may also have followed the
    user's sampling coins, even if no level moved, because levels could have moved after other
    coins. The log does not show this, so no such epsilon is given from then on.

    Args:
        archive: the topics; only the user's partition of the log is read.
        delta: the delta of the epsilons, strictly between 0 and 1. None: only amounts. A dataset
            has no delta of its own, and any other would be another statement than the one made.
        dataset: show only events that are charged to the budget of this dataset.

    Raises:
        BrokenLog: the log has a gap, or is not the one that was applied.
        UnreadableService: Kafka does not answer, or the log was trimmed and no snapshot has the
            earlier state.
    """
    partition = int(partitions_of([user], archive.partitions)[0])
    replay = LogReplay(archive, partition)
    if replay.cut_off:
        raise UnreadableService(replay.cut_off)
    account = _Account(replay.ledger, user, delta)
    events = list(account.earlier(partition, replay.began)) if replay.began else []
    events += filter(None, map(account.event_of, replay.steps()))
    shown = [
        event
        for event in events
        if dataset in (None, event.dataset, *(share.dataset for share in event.budgets))
    ]
    return Explanation(_with_queries(shown, archive), replay.heads)


def _with_queries(events: list[AccountEvent], archive: Archive) -> list[AccountEvent]:
    """Return the events with the queries and the windows that their steps answered."""
    steps = {(event.dataset, event.run, event.step) for event in events if event.step is not None}
    known: dict[tuple[str, str, int | None], AnswerRecord] = {}
    for record in archive.answers() if steps else ():
        if (place := (record.dataset, record.run, record.step)) in steps:
            known[place] = record
    return [
        replace(
            event,
            query=found.query,
            start=found.start,
            end=found.end,
            is_correction=found.coverage == "all",
        )
        if (found := known.get((event.dataset, event.run, event.step)))
        else event
        for event in events
    ]


class _Account:
    """One user during the replay."""

    def __init__(self, ledger: Ledger, user: User, delta: float | None) -> None:
        self._ledger = ledger
        self._user = user
        self._delta = delta
        self._sampled: set[str] = set()  # outermost datasets with a sampled step of this user
        self._spent: dict[str, Units] = {}  # by dataset, after the last event
        self._positions: dict[Address, int] = {}  # by roster
        self._collected: dict[Address, float] = {}  # by step, the norm that a run has collected
        self._reasons: dict[Address, RosterReasons] = {}  # by roster, why members are halted

    def earlier(self, partition: int, offset: int) -> Iterator[AccountEvent]:
        """Yield an event for each dataset in which the state before the replay has the user."""
        state = self._ledger.state
        for name in state.datasets:
            if self._slot(name) is None:
                continue
            budgets = state.policies.budgets(name)
            if all(policy.row.covers(_SAMPLED) for policy in budgets.policies):
                self._sampled.update(_names(budgets.outermost))  # there may have been sampled steps
            own, *_ = self._shares(budgets, None)
            place = math.nan, partition, offset, name, "", None
            erased = budgets.are_erased(budgets.known_as(UserIds([self._user]))) is not None
            yield AccountEvent(*place, "earlier", erased=erased, budgets=(own,))
        for address in state.rosters.members:
            self._is_member(address)

    def _is_member(self, address: Address) -> bool:
        """Return whether the user is in a roster, and remember the position."""
        members = self._ledger.state.rosters.members[address]
        there = np.flatnonzero(members.slots == self._slot(address[0])).tolist()
        if there:
            self._positions[address] = there[0]
        return bool(there)

    def event_of(self, applied: Applied) -> AccountEvent | None:
        """Return what a record has done to the user, if anything."""
        match applied.request:
            case NormEvent() | NormEvents() as sent:
                self._note_norm(sent)
            case Charge() as charge if applied.is_first:
                decision = applied.decision
                place = self._place(charge, decision)
                return None if place is None else self._charged(applied, charge, decision, place)
            case ChargeRoster() as charge if charge.address in self._positions and applied.is_first:
                return self._charged_by_level(applied, charge)
            case Erase() as erase if erase.user == self._user:
                return self._erased(applied, erase)
            case Enrol() as enrol if enrol.address not in self._positions:
                return self._enrolled(applied, enrol)
        return None

    def _note_norm(self, sent: NormEvent | NormEvents) -> None:
        """Remember the norm of the user that a run collects, before its charge drops it."""
        norm = self._ledger.state.collected.norm_of(step_of(sent), self._user)
        if norm is not None:
            self._collected[step_of(sent)] = norm

    def _place(self, charge: Charge, decision: Decision) -> int | None:
        """Return the position of the user among those of a charge; None if it is not there."""
        if decision.collected is UNSET:
            return UserIds.unpack(charge.users).position(self._user)
        admitted = unpack_bits(decision.admitted, decision.users)
        for users, are_here in ((decision.collected, admitted), (decision.halted, ~admitted)):
            found = UserIds.unpack(users).position(self._user)
            if found is not None:
                return int(np.flatnonzero(are_here)[found])
        return None

    def _charged(
        self, applied: Applied, charge: Charge, decision: Decision, place: int
    ) -> AccountEvent:
        arrays = DecisionArrays.of(decision)
        is_admitted = bool(arrays.admitted[place])
        if decision.norms is UNSET:
            norm = float(unpack_norms(charge.norms)[place])
        else:
            # Without the event in this log, what was granted stands for what was sent.
            among = int(np.count_nonzero(arrays.admitted[:place]))
            sent = float(unpack_norms(decision.norms)[among]) if is_admitted else 0.0
            norm = self._collected.pop(step_of(charge), sent)
        granted = norm
        clipped = np.flatnonzero(arrays.clipped == place)
        if len(clipped):
            granted = float(arrays.granted[clipped[0]])
        reason = None if is_admitted else int(arrays.reasons[place])
        exhausted = bool(arrays.exhausted[place])
        decided = decided_user(self._user, norm, granted, exhausted, reason, decision.budgets)
        budgets = self._ledger.state.policies.budgets(charge.dataset)
        mechanism = mechanism_of(charge)
        asked = [
            policy.row.charge_units(mechanism, [norm], policy.orders or None)[0]
            for policy in budgets.policies
        ]
        return self._event(applied, charge, decided, budgets=self._shares(budgets, asked))

    def _charged_by_level(self, applied: Applied, charge: ChargeRoster) -> AccountEvent:
        address = charge.address
        rosters = self._ledger.state.rosters
        row = np.array([self._positions[address]])
        reasons = self._reasons.setdefault(address, RosterReasons(address))
        reasons.follow(applied)
        (decided,) = decided_members(self._ledger, address, reasons, row)
        level = int(rosters.members[address].numbers(row)["level"][0])
        budgets = self._ledger.state.policies.budgets(charge.dataset)
        if charge.mechanism == "poisson-gaussian" and charge.sampling_rate < 1.0:
            self._sampled.update(_names(budgets.outermost))
        terms = rosters[address]
        asked = [table.units[level] for table in budgets.cost_tables(terms.units, terms.levels)]
        shares = self._shares(budgets, asked)
        rate = charge.sampling_rate
        return self._event(
            applied, charge, decided, level=level, sampling_rate=rate, budgets=shares
        )

    def _enrolled(self, applied: Applied, enrol: Enrol) -> AccountEvent | None:
        if not self._is_member(enrol.address):
            return None
        shares = self._shares(self._ledger.state.policies.budgets(enrol.dataset), None)
        place = *_place(applied), enrol.dataset, enrol.run, None
        norm = float(enrol.clip_norm)
        return AccountEvent(*place, "enrolled", norm, level=enrol.levels, budgets=shares)

    def _erased(self, applied: Applied, request: Erase) -> AccountEvent | None:
        answer = decode_answer(applied.outputs[0].value)
        assert isinstance(answer, Erased)
        if len(applied.outputs) == 1:  # the user is unknown, or was erased before
            return None
        budgets = map(self._ledger.state.policies.budgets, answer.datasets)
        shares = tuple(self._shares(each, None)[0] for each in budgets)
        place = *_place(applied), request.dataset or answer.datasets[0], "", None
        return AccountEvent(*place, "erased", erased=True, exhausted=True, budgets=shares)

    def _event(
        self, applied: Applied, charge: Charge | ChargeRoster, decided: DecidedUser, **fields: Any
    ) -> AccountEvent:
        """Return a step with its result for the user."""
        return AccountEvent(
            *_place(applied),
            charge.dataset,
            charge.run,
            charge.step,
            decided.what,
            decided.norm,
            decided.granted,
            mechanism=charge.mechanism,
            scale=None if charge.mechanism == "pure-dp" else charge.scale,
            refused_by=decided.refused_by,
            reason=decided.reason,
            erased=decided.reason == halt_reason(ERASED),
            exhausted=decided.exhausted,
            **fields,
        )

    def _slot(self, dataset: str) -> int | None:
        budgets = self._ledger.state.policies.budgets(dataset)
        known = budgets.known_as(UserIds([self._user]))
        if not budgets.own.knows(known)[0]:
            return None
        (slot,) = budgets.own.seek(known).slots.tolist()
        return int(slot)

    def _shares(self, budgets: Budgets, asked: list[Units] | None) -> tuple[Share, ...]:
        """Return the changes of each budget since the last event."""
        shares = []
        has_sampled = not self._sampled.isdisjoint(_names(budgets.family))
        known = budgets.known_as(UserIds([self._user]))
        for number, accounts in enumerate(budgets.accounts):
            policy, amounts = accounts.policy, Amounts(accounts.policy)
            numbers = accounts.numbers(accounts.seek(known).slots)
            order = int(numbers["order"][0]) if "order" in numbers else None
            spent = np.atleast_1d(numbers["spent"][0])
            cost = spent - self._spent.get(policy.dataset, np.zeros_like(spent))
            self._spent[policy.dataset] = spent
            # A user without charges may be bound to any order, and has its whole budget.
            is_bound = order is None or bool(numbers["bound"][0])
            per_user_order = policy.orders[order] if order is not None and is_bound else None
            wanted = np.zeros_like(spent) if asked is None else amounts.at(asked[number], order)
            # Unless the policy says, levels may have followed the coins of any dataset in the same
            # family.
            stated = policy.sampled_levels
            follow_coins = has_sampled if stated is UNSET else stated
            delta = self._delta if policy.row.has_delta else DELTA  # pure DP holds at every delta
            epsilon = whole = None
            if delta is not None:
                if not follow_coins:
                    bound = amounts.epsilon(numbers["spent"], numbers.get("order"), delta)
                    epsilon = float(bound[0])
                whole = budget_epsilon(policy, per_user_order, delta)
            shares.append(
                Share(
                    dataset=policy.dataset,
                    measure=policy.measure,
                    unit=policy.row.unit,
                    power=policy.row.power,
                    orders=amounts.orders(order),
                    tightest=amounts.tightest(spent, order),
                    asked=amounts.stated(wanted),
                    cost=amounts.stated(cost),
                    spent=amounts.stated(spent),
                    budget=amounts.left(np.zeros_like(spent), order) if is_bound else [],
                    left=amounts.left(spent, order) if is_bound else [],
                    epsilon=epsilon,
                    budget_epsilon=whole,
                )
            )
        return tuple(shares)


def _place(applied: Applied) -> tuple[float, int, int]:
    return applied.record.written, applied.partition, applied.record.offset


def _names(budgets: Iterable[Accounts]) -> list[str]:
    return [accounts.policy.dataset for accounts in budgets]
