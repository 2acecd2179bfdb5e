"""One partition of the log, applied: (state, record) -> (state, answers). No I/O, no clock.

What a run is, and what moves it, is said in ``streams.ledger.runs``. A dataset, as one partition
sees it:

    (unknown) --create-dataset--> policy                    the first one binds P of the log
    policy --create-dataset, same policy--> unchanged
    policy --open-run--> policy, in use
    policy --create-dataset within it--> policy, in use
    policy --withdraw-dataset--> (unknown)                  not if it is in use
    policy, in use or not --close-dataset--> closed, as are those within it and all their runs
    closed --close-dataset--> unchanged                     nothing leads from there
    (unknown) --withdraw-dataset--> unchanged
    policy, closed or not --close-dataset, moves_to a log--> closed, and nothing changes any more
    (unknown) --receive-dataset--> arriving: see ``streams.ledger.arrivals``

Applying the same records to the same state gives the same bytes, on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import UNSET

from streams.ledger.accounts import Accounts
from streams.ledger.apart import check_roster, check_version, separation_of
from streams.ledger.budgets import Budgets
from streams.ledger.charges import check_homes
from streams.ledger.columns import Rows, UnknownState
from streams.ledger.forgotten import ErasureKeys, LostErasureKey, alone, check_key
from streams.ledger.impasse import Impasse
from streams.ledger.limits import check_size, check_values, fits_by_counts
from streams.ledger.moving import (
    add_policy,
    check_around,
    check_arrived,
    check_movable,
    check_partitions,
    check_receivable,
    check_stays,
    receive,
    take_balances,
)
from streams.ledger.outputs import (
    Channel,
    Output,
    Place,
    answer_to,
    checkpoint_of,
    decision_of,
    enrolled_of,
    halted_of,
    reject,
    roster_decision_of,
    tombstone_of,
)
from streams.ledger.policies import (
    check_policy,
    check_within,
    is_same_policy,
    policy_as_of,
    policy_to_store,
    quoted,
)
from streams.ledger.principals import Gate, Operators, UnknownOperator
from streams.ledger.rosters import Members, enrolment, pricing
from streams.ledger.rule import NOBODY
from streams.ledger.runs import (
    RunState,
    check_next_step,
    closed,
    opened,
    stored_decision,
    under_current_attempt,
)
from streams.ledger.state import Changes, DatasetSummary, Kept, LayoutMismatch, State, Summary
from streams.ledger.tracked import Address
from streams.schemas import (
    VERSION,
    Answer,
    Balances,
    BindOperator,
    Charge,
    ChargeRoster,
    CloseDataset,
    CloseRun,
    CreateDataset,
    DatasetClosed,
    DatasetCreated,
    DatasetReceived,
    DatasetWithdrawn,
    Enrol,
    Enrolled,
    Forget,
    Forgotten,
    OpenRun,
    OperatorBound,
    Policy,
    PrincipalRegistered,
    Reason,
    ReceiveDataset,
    RegisterPrincipal,
    Rejection,
    Request,
    RunClosed,
    RunOpened,
    Sender,
    User,
    WithdrawDataset,
    decode_signed,
    encode,
)
from streams.wire.chain import NO_TOPIC, Chain, genesis
from streams.wire.packing import charge_digest, roster_digest

__all__ = [
    "Changes",
    "Channel",
    "DatasetSummary",
    "Impasse",
    "Kept",
    "LayoutMismatch",
    "Ledger",
    "LostErasureKey",
    "Output",
    "Summary",
    "UnknownOperator",
    "UnknownState",
    "ledger_of",
]


def ledger_of(
    kept: Kept,
    partition: int,
    partitions: int,
    topic: bytes,
    chain: Chain,
    erasure_keys: str = "",
    operator_keys: str = "",
) -> Ledger:
    """The state of a partition as it was committed last.

    Args:
        kept: what is stored of it.
        partition: which one.
        partitions: P of the topic.
        topic: the 16 bytes of the topic's id in Kafka.
        chain: the digest of the log up to there.
        erasure_keys: by which users who were forgotten are known again; see ``ErasureKeys``.
        operator_keys: of the operators whose word is followed; see ``Operators``.

    Raises:
        LayoutMismatch: the state is of another P.
        LostErasureKey: users were forgotten under a key that is not among these.
        UnknownOperator: the operator is not among these.
        UnknownState: a later release wrote some of it.
    """
    ledger = Ledger(partition, partitions, topic, erasure_keys, operator_keys)
    ledger.load(kept.pages)
    for changes in kept.changes:
        ledger.put_back(msgspec.msgpack.decode(changes, type=Changes))
    ledger.check_whole()
    ledger.chain = chain
    return ledger


class Ledger(State):
    """All datasets and runs of one partition, and what a record does to them.

    Attributes:
        topic: the 16 bytes of the topic's id in Kafka.
        erasure_keys: by which users who were forgotten are known again.
        operator_keys: of the operators whose word is followed.
        chain: the digest of the records applied so far. Offsets that hold no record leave it as
            it is: they are not applied.
    """

    def __init__(
        self,
        partition: int,
        partitions: int,
        topic: bytes = NO_TOPIC,
        erasure_keys: str = "",
        operator_keys: str = "",
    ) -> None:
        erasing, operators = ErasureKeys(erasure_keys, topic), Operators(operator_keys)
        super().__init__(partition, partitions, erasing, operators)
        self.erasure_keys, self.operator_keys = erasure_keys, operator_keys
        self.topic = topic
        self.gate = Gate((topic, partition), self.operator, self.principals, self.policies)
        self.chain = genesis(topic, partition, partitions)

    def apply(self, offset: int, value: bytes | None) -> list[Output]:
        """Apply one record of the log; what comes back is to be published.

        A record that cannot be applied changes nothing and comes back on the rejects channel.

        Raises:
            Impasse: the log is of another P, who signed it cannot be told here, or users come who
                were forgotten under a key not known here; nothing has changed, the chain included.
        """
        place, request = Place(self.partition, offset), None
        try:
            request, sender = decode_signed(value)
            self.gate.check(request, sender)
            outputs = self._apply(place, request, sender)
        except Rejection as rejection:
            request = request or rejection.request
            run = self.runs.get(request.address) if request else None
            outputs = [reject(value, request, rejection, run.attempt if run else None, place)]
        self.chain = self.chain.then(offset, value)
        self._put_out += sum(output.size for output in outputs)
        return outputs

    def wake(self) -> None:
        """Have all rosters go on from what is stored of them, so that they can be looked at."""
        for name in self.datasets:
            self._wake(self.policies.budgets(name))

    def _apply(self, place: Place, request: Request, sender: Sender | None) -> list[Output]:
        answer: Answer
        match request:
            case Charge():
                return self._charge(place, request)
            case ChargeRoster():
                return self._charge_roster(place, request)
            case Forget():
                return self._forget(place, request)
            case Balances():
                budgets = self._budgets_of(request.dataset)
                changes, outputs = take_balances(self, place, request, budgets)
                self._note(changes)
                return outputs
            case ReceiveDataset():
                answer = self._receive_dataset(place, request, sender)
            case Enrol():
                answer = self._enrol(place, request)
            case CreateDataset():
                answer = self._create_dataset(place, request, sender)
            case WithdrawDataset():
                answer = self._withdraw_dataset(place, request)
            case OpenRun():
                answer = self._open_run(place, request)
            case CloseRun():
                answer = self._close_run(place, request)
            case CloseDataset():
                answer = self._close_dataset(place, request)
            case BindOperator():
                answer = self._bind_operator(place, request, sender)
            case RegisterPrincipal():
                answer = self._register_principal(place, request, sender)
        return [answer_to(request, encode(answer))]

    def _bind_operator(
        self, place: Place, request: BindOperator, sender: Sender | None
    ) -> OperatorBound:
        self.gate.bind(request, sender)
        return OperatorBound(
            v=request.v,
            request=request.request,
            partition=place.partition,
            offset=place.offset,
            number=request.number,
            operator=request.operator,
        )

    def _register_principal(
        self, place: Place, request: RegisterPrincipal, sender: Sender | None
    ) -> PrincipalRegistered:
        self.gate.register(request, sender)
        return PrincipalRegistered(
            v=request.v,
            request=request.request,
            partition=place.partition,
            offset=place.offset,
            number=request.number,
            principal=request.principal,
        )

    def _create_dataset(
        self, place: Place, request: CreateDataset, sender: Sender | None
    ) -> DatasetCreated:
        policy = request.policy
        check_policy(policy)
        outer = self._policies_around(policy)
        check_within(policy, outer)
        check_partitions(self, policy)
        stored = self.policies.get(request.address)
        if stored is None:
            check_around(policy, outer)
            self.gate.check_creation(policy, outer, sender)
            if outer:
                self._check_open(outer[0].dataset)
                check_arrived(self, outer[0].dataset)
            stored = policy_to_store(policy, request.v, outer)
            add_policy(self, stored)
        elif not is_same_policy(stored, policy, request.v):
            detail = (
                f"dataset {policy.dataset!r} exists with another policy ({quoted(stored)}); "
                "a policy never changes"
            )
            if request.v == 1:  # which forgot what comes of it; later clients say it
                detail += ": create a dataset with another name"
            raise Rejection(Reason.POLICY_CHANGED, detail)
        self._check_open(policy.dataset)
        return DatasetCreated(
            v=request.v,
            request=request.request,
            partition=place.partition,
            offset=place.offset,
            policy=policy_as_of(stored, request.v),
        )

    def _receive_dataset(
        self, place: Place, request: ReceiveDataset, sender: Sender | None
    ) -> DatasetReceived:
        outer = self._policies_around(request.policy)
        check_receivable(self, request.policy, outer)
        self.gate.check_arrival(request.policy, outer, sender)
        return receive(self, place, request, outer)

    def _withdraw_dataset(self, place: Place, request: WithdrawDataset) -> DatasetWithdrawn:
        name = request.dataset
        accounts = self.datasets.get(name)
        if accounts is not None:
            self._check_open(name)
            if request.address in self.arrivals:
                detail = f"dataset {name!r} cannot be withdrawn: it came from another log"
                raise Rejection(Reason.DATASET_IN_USE, detail)
            if name in self.runs.datasets or len(accounts):
                detail = f"dataset {name!r} cannot be withdrawn: a run of it has been opened"
                raise Rejection(Reason.DATASET_IN_USE, detail)
            if self.policies.has_within(name):
                detail = f"dataset {name!r} cannot be withdrawn: another dataset is within it"
                raise Rejection(Reason.DATASET_IN_USE, detail)
            del self.policies[request.address]
        return DatasetWithdrawn(
            v=request.v,
            dataset=name,
            request=request.request,
            partition=place.partition,
            offset=place.offset,
        )

    def _open_run(self, place: Place, request: OpenRun) -> RunOpened:
        budgets = self._open_budgets_of(request.dataset, request.v)
        address = request.address
        known, separation = self.runs.get(address), self.separations.get(address, UNSET)
        run = opened(known, request)
        asked = separation_of(request, known, run, separation, has_roster=address in self.rosters)
        self.runs[address] = run
        if asked is not UNSET and asked != separation:
            self.separations[address] = asked
        return RunOpened(
            v=request.v,
            dataset=request.dataset,
            run=request.run,
            attempt=run.attempt,
            request=request.request,
            partition=place.partition,
            offset=place.offset,
            last_step=run.step,
            policy=policy_as_of(budgets.own.policy, request.v),
            outer=budgets.policies[1:] if budgets.is_nested else UNSET,
            min_separation=asked,
        )

    def _close_run(self, place: Place, request: CloseRun) -> RunClosed:
        self._budgets_of(request.dataset)
        run = under_current_attempt(self.runs.get(request.address), request)
        self._end_run(request.address, run)
        return RunClosed(
            v=request.v,
            dataset=request.dataset,
            run=request.run,
            attempt=run.attempt,
            request=request.request,
            partition=place.partition,
            offset=place.offset,
            last_step=run.step,
        )

    def _close_dataset(self, place: Place, request: CloseDataset) -> DatasetClosed:
        budgets = self._budgets_of(request.dataset)
        if request.moves_to is not UNSET:
            check_movable(self, budgets, self.topic.hex(), request.moves_to)
        datasets = self.policies.within(request.dataset)
        for address, run in list(self.runs.items()):
            if address[0] in datasets and not run.closed:
                self._end_run(address, run)
        for name in datasets:
            if (name,) not in self.closed:
                self.closed[name,] = place.offset
            if request.moves_to is not UNSET and (name,) not in self.moved:
                self.moved[name,] = request.moves_to
        return DatasetClosed(
            v=request.v,
            dataset=request.dataset,
            request=request.request,
            partition=place.partition,
            offset=place.offset,
            datasets=datasets,
            moves_to=self.moved.get(request.address, UNSET),
        )

    def _end_run(self, address: Address, run: RunState) -> None:
        """Charge what is in arrears, and keep of a run only that there was one."""
        self.runs[address] = closed(run)
        self._drop_roster(address)
        if (separation := self.separations.pop(address, None)) is not None:
            self.participants.forget(address, separation)

    def _check_open(self, dataset: str) -> None:
        if (dataset,) in self.closed:
            detail = (
                f"dataset {dataset!r} was closed, which is for good: what was charged to it stays, "
                "and so does its name"
            )
            if (dataset,) in self.moved:
                detail = f"dataset {dataset!r} moved to the log {self.moved[dataset,]}: go on there"
            raise Rejection(Reason.DATASET_CLOSED, detail)

    def _charge(self, place: Place, charge: Charge) -> list[Output]:
        budgets = self._open_budgets_of(charge.dataset, charge.v)
        run = under_current_attempt(self.runs.get(charge.address), charge)
        separation = self.separations.get(charge.address, UNSET)
        check_version(charge, separation)
        digest = charge_digest(charge)
        if charge.step == run.step:
            return [answer_to(charge, encode(stored_decision(run, charge, digest)))]
        check_next_step(run, charge)
        check_size(charge, budgets.orders)
        plans = budgets.plan(charge)
        orders = budgets.own.rule.orders or 1
        if charge.v == 1 and not fits_by_counts(charge, orders):
            check_values(charge, orders, *budgets.own.measure(plans[0]))
        too_soon = None
        if separation is not UNSET:
            waiting = self.participants.have_to_wait(charge.address, plans[0].slots)
            too_soon = waiting & (plans[0].norms > 0)
        outcome = budgets.charge(plans, too_soon)
        for changes in outcome.changes:
            self._note(changes)
        if separation is not UNSET:
            taking_part = plans[0].slots[outcome.admitted & (plans[0].norms > 0)]
            self.participants.take_part(charge.address, charge.step, separation, taking_part)
        self._note_taken(budgets, outcome.slots)
        decision = encode(decision_of(charge, digest, budgets, outcome, place))
        self.runs[charge.address] = msgspec.structs.replace(
            run, step=charge.step, digest=digest, decision=decision, of_roster=False
        )
        return [
            answer_to(charge, decision),
            *(
                checkpoint_of(charge, dataset, risen, place)
                for dataset, raised in outcome.raised
                for risen in raised
            ),
        ]

    def _enrol(self, place: Place, request: Enrol) -> Enrolled:
        budgets = self._open_budgets_of(request.dataset)
        run = under_current_attempt(self.runs.get(request.address), request)
        check_roster(request, self.separations.get(request.address, UNSET))
        terms = self.rosters.get(request.address)
        members = self.rosters.members.get(request.address, Members())
        enrolled = enrolment(request, terms, members, budgets)
        if enrolled.terms != terms:
            self.rosters[request.address] = enrolled.terms
            self._wake(budgets)
            members = self.rosters.members[request.address]
        for accounts, sought in zip(budgets.accounts, enrolled.sought, strict=True):
            if len(sought.new_users):
                self._note(accounts.enrol(sought.new_users))
        slots = [sought.slots for sought in enrolled.sought]
        if len(slots[0]):
            added = members.add(slots, enrolled.terms.levels)
            self._note_members(request.address, added)
        known = members.digests(budgets)
        return enrolled_of(request, enrolled.terms, members, known, run, place)

    def _charge_roster(self, place: Place, charge: ChargeRoster) -> list[Output]:
        budgets = self._open_budgets_of(charge.dataset)
        run = under_current_attempt(self.runs.get(charge.address), charge)
        digest = roster_digest(charge)
        if charge.step == run.step:
            return [answer_to(charge, encode(stored_decision(run, charge, digest)))]
        check_next_step(run, charge)
        check_roster(charge, self.separations.get(charge.address, UNSET))
        terms = self.rosters.get(charge.address)
        if terms is None:
            detail = f"nobody is enrolled in run {charge.run!r}: send enrol before charge-roster"
            raise Rejection(Reason.UNKNOWN_ROSTER, detail)
        members = self.rosters.members[charge.address]
        priced = pricing(charge, terms, len(members), budgets)
        step = members.step(priced)
        outcome = step.outcome
        if priced.terms != terms:
            self.rosters[charge.address] = priced.terms
        for noted in step.noted:
            self._note_members(charge.address, noted)
        self._note_taken(budgets, step.slots, but=charge.address)
        checkpoints: list[Output] = []
        for number, accounts in enumerate(budgets.accounts):
            risen = outcome.raised[number]
            raised = members.slots_of(risen.positions)[number]
            charged = step.charged[number]
            self._note(accounts.note(step.slots[number], raised, step.bound[number], charged))
            checkpoints += (
                checkpoint_of(charge, accounts.policy.dataset, bound, place)
                for bound in accounts.bounds_raised(raised, risen.rungs_before)
            )
        decision = encode(roster_decision_of(charge, digest, outcome, place))
        self.runs[charge.address] = msgspec.structs.replace(
            run,
            step=charge.step,
            digest=digest,
            decision=decision,
            of_roster=True,
            roster_steps=run.roster_steps + 1,
        )
        halted = budgets.own.users_at(members.slots_of(outcome.halted)[0])
        exhausted = members.is_exhausted(outcome.halted)
        refused = budgets, outcome.refused_by
        return [
            answer_to(charge, decision),
            *halted_of(charge, halted, exhausted, refused, place),
            *checkpoints,
        ]

    def _forget(self, place: Place, request: Forget) -> list[Output]:
        if request.dataset is not UNSET:
            *_, policy = self._budgets_of(request.dataset).policies
            check_stays(self, policy.dataset)
            check_arrived(self, policy.dataset)
            check_key(policy, request)
        outermost = self.policies.outermost_of(request)
        for name in outermost:
            check_arrived(self, name)
        check_homes(alone(request.user), place.partition, self.partitions)
        forgotten: list[str] = []
        tombstones: list[Output] = []
        for name in outermost:
            family = self.policies.family(name)
            there, left = self._forget_in(family, self.policies.budgets(name), request.user)
            forgotten += there
            tombstones += (tombstone_of(dataset, request.user, place) for dataset in left)
        answer = Forgotten(
            v=request.v,
            request=request.request,
            partition=place.partition,
            offset=place.offset,
            datasets=sorted(forgotten),
        )
        return [answer_to(request, encode(answer)), *tombstones]

    def _forget_in(
        self, family: Sequence[Accounts], budgets: Budgets, user: User
    ) -> tuple[list[str], list[str]]:
        """Forget a user in datasets that share a budget, the outermost.

        Returns:
            In which of them the user is forgotten now, and in which since now.
        """
        (known,) = np.asarray(budgets.known_as(alone(user))).tolist()
        if known != user or user in budgets.own.forgotten:
            found = alone(known)
            return [a.policy.dataset for a in family if a.knows(found)[0]], []
        members = [accounts for accounts in family if accounts.knows(alone(user))[0]]
        if not members:
            return [], []
        self._wake(budgets)
        (slot,) = budgets.own.seek(alone(user)).slots.tolist()
        self._note(budgets.own.spend_the_rest(slot))
        self._note_taken(budgets, [np.array([slot])])
        name = self.forgotten.new_name(user, family)
        datasets = [accounts.policy.dataset for accounts in members]
        for accounts in members:
            (slot,) = accounts.seek(alone(user)).slots.tolist()
            self.forgotten[accounts.policy.dataset, str(slot)] = name
        return datasets, datasets

    def _drop_roster(self, address: Address) -> None:
        """Charge its members what is in arrears, and forget it."""
        if address in self.rosters:
            members, budgets = self.rosters.members[address], self.policies.budgets(address[0])
            members.close()
            everybody = np.arange(len(members))
            slots = members.slots_of(everybody)
            for accounts, rows in zip(budgets.accounts, slots, strict=True):
                self._note(accounts.note(rows, NOBODY, NOBODY))
            del self.rosters[address]

    def _note_taken(
        self, budgets: Budgets, taken: Sequence[Rows], but: Address | None = None
    ) -> None:
        """Note what rosters know of these users, whose accounts were brought up to date.

        Those in budgets that are not charged now, too, where a roster charges both.
        """
        if len(budgets.outermost.account.standings) <= (but is not None):
            return
        for address, members in self.rosters.members.items():
            other = self.policies.budgets(address[0])
            if address == but or other.outermost is not budgets.outermost:
                continue
            accounts, slots = next(
                pair
                for pair in zip(budgets.accounts, taken, strict=True)
                if pair[0] in other.accounts
            )
            listed = np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
            rows = np.sort(members.rows_of(accounts, listed))
            self._note_members(address, members.note(rows))
            for accounts, slots in zip(other.accounts, members.slots_of(rows), strict=True):
                if len(slots) and accounts not in budgets.accounts:
                    self._note(accounts.note(slots, NOBODY, NOBODY))

    def _wake(self, budgets: Budgets) -> None:
        """Have all rosters that share a budget with these go on from what is stored of them."""
        for address in list(self.rosters.asleep):
            own = self.policies.budgets(address[0])
            if own.outermost is budgets.outermost:
                steps = self.runs[address].roster_steps
                self.rosters.members[address].wake(own, self.rosters[address], steps)
                self.rosters.asleep.discard(address)

    def _policies_around(self, policy: Policy) -> list[Policy]:
        """Of the datasets that a new one would be within; none if there is none of that name."""
        return [] if policy.within is UNSET else self.policies.policies_of(policy.within)

    def _open_budgets_of(self, dataset: str, version: int = VERSION) -> Budgets:
        """The same, of a dataset that is not closed."""
        budgets = self._budgets_of(dataset, version)
        self._check_open(dataset)
        check_arrived(self, dataset)
        return budgets

    def _budgets_of(self, dataset: str, version: int = VERSION) -> Budgets:
        """Of a dataset that a request of this version wants to charge."""
        try:
            budgets = self.policies.budgets(dataset)
        except KeyError:
            detail = f"dataset {dataset!r} does not exist; create it before anything is charged"
            raise Rejection(Reason.UNKNOWN_DATASET, detail) from None
        if budgets.is_nested and version < 3:
            detail = (
                f"dataset {dataset!r} is within another one, of which version {version} knows "
                "nothing: open and charge it in version 3"
            )
            raise Rejection(Reason.UNSUPPORTED_VERSION, detail)
        if self.rosters.asleep:
            self._wake(budgets)
        return budgets
