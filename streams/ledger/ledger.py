"""One partition of the log, applied: (state, record) -> (state, answers). No I/O, no clock.

What a run is, and what moves it, is said in ``streams.ledger.runs``. A dataset, as one partition
sees it:

    (unknown) --create-dataset--> policy                    the first one binds P of the log
    policy --create-dataset, same policy--> unchanged
    policy --open-run--> policy, in use
    policy --withdraw-dataset--> (unknown)                  not if it is in use
    (unknown) --withdraw-dataset--> unchanged

Applying the same records to the same state gives the same bytes, on any machine.
"""

from __future__ import annotations

import msgspec

from streams.ledger.accounts import Accounts
from streams.ledger.columns import UnknownState
from streams.ledger.limits import check_size, check_values, fits_by_counts
from streams.ledger.outputs import (
    Channel,
    Output,
    Place,
    answer_to,
    checkpoint_of,
    decision_of,
    reject,
)
from streams.ledger.policies import (
    check_policy,
    is_same_policy,
    policy_as_of,
    policy_to_store,
    quoted,
)
from streams.ledger.runs import (
    check_next_step,
    closed,
    opened,
    stored_decision,
    under_current_attempt,
)
from streams.ledger.state import Changes, DatasetSummary, Kept, LayoutMismatch, State, Summary
from streams.schemas import (
    Answer,
    Charge,
    CloseRun,
    CreateDataset,
    DatasetCreated,
    DatasetWithdrawn,
    OpenRun,
    Reason,
    Rejection,
    Request,
    RunClosed,
    RunOpened,
    WithdrawDataset,
    decode_request,
    encode,
)
from streams.wire.chain import NO_TOPIC, Chain, genesis
from streams.wire.packing import charge_digest

__all__ = [
    "Changes",
    "Channel",
    "DatasetSummary",
    "Kept",
    "LayoutMismatch",
    "Ledger",
    "Output",
    "Summary",
    "UnknownState",
    "ledger_of",
]


def ledger_of(
    kept: Kept,
    partition: int,
    partitions: int,
    topic: bytes,
    chain: Chain,
) -> Ledger:
    """The state of a partition as it was committed last.

    Args:
        kept: what is stored of it.
        partition: which one.
        partitions: P of the topic.
        topic: the 16 bytes of the topic's id in Kafka.
        chain: the digest of the log up to there.

    Raises:
        LayoutMismatch: the state is of another P.
        UnknownState: a later release wrote some of it.
    """
    ledger = Ledger(partition, partitions, topic)
    ledger.load(kept.pages)
    for changes in kept.changes:
        ledger.put_back(msgspec.msgpack.decode(changes, type=Changes))
    ledger.chain = chain
    return ledger


class Ledger(State):
    """All datasets and runs of one partition, and what a record does to them.

    Attributes:
        topic: the 16 bytes of the topic's id in Kafka.
        chain: the digest of the records applied so far. Offsets that hold no record leave it as
            it is: they are not applied.
    """

    def __init__(self, partition: int, partitions: int, topic: bytes = NO_TOPIC) -> None:
        super().__init__(partition, partitions)
        self.topic = topic
        self.chain = genesis(topic, partition, partitions)

    def apply(self, offset: int, value: bytes | None) -> list[Output]:
        """Apply one record of the log; what comes back is to be published.

        A record that cannot be applied changes nothing and comes back on the rejects channel.

        Raises:
            LayoutMismatch: the log is of another P; nothing has changed, the chain included.
        """
        place, request = Place(self.partition, offset), None
        try:
            request = decode_request(value)
            outputs = self._apply(place, request)
        except Rejection as rejection:
            request = request or rejection.request
            run = self.runs.get(request.address) if request else None
            outputs = [reject(value, request, rejection, run.attempt if run else None, place)]
        self.chain = self.chain.then(offset, value)
        self._put_out += sum(output.size for output in outputs)
        return outputs

    def _apply(self, place: Place, request: Request) -> list[Output]:
        answer: Answer
        match request:
            case Charge():
                return self._charge(place, request)
            case CreateDataset():
                answer = self._create_dataset(place, request)
            case WithdrawDataset():
                answer = self._withdraw_dataset(place, request)
            case OpenRun():
                answer = self._open_run(place, request)
            case CloseRun():
                answer = self._close_run(place, request)
        return [answer_to(request, encode(answer))]

    def _create_dataset(self, place: Place, request: CreateDataset) -> DatasetCreated:
        policy = request.policy
        check_policy(policy)
        if policy.partitions != self.partitions:
            if not self.layout:
                raise LayoutMismatch(policy.partitions, self.partitions)
            detail = f"the topic has {self.partitions} partitions, not {policy.partitions}"
            raise Rejection(Reason.INVALID_POLICY, detail)
        stored = self.policies.get(request.address)
        if stored is None:
            stored = policy_to_store(policy, request.v)
            if not self.layout:
                self.layout[()] = policy.partitions
            self.policies[request.address] = stored
        elif not is_same_policy(stored, policy, request.v):
            detail = (
                f"dataset {policy.dataset!r} exists with another policy ({quoted(stored)}); "
                "a policy never changes"
            )
            if request.v == 1:  # which forgot what comes of it; later clients say it
                detail += ": create a dataset with another name"
            raise Rejection(Reason.POLICY_CHANGED, detail)
        return DatasetCreated(
            v=request.v,
            request=request.request,
            partition=place.partition,
            offset=place.offset,
            policy=policy_as_of(stored, request.v),
        )

    def _withdraw_dataset(self, place: Place, request: WithdrawDataset) -> DatasetWithdrawn:
        name = request.dataset
        accounts = self.datasets.get(name)
        if accounts is not None:
            if name in self.runs.datasets or len(accounts):
                detail = f"dataset {name!r} cannot be withdrawn: a run of it has been opened"
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
        accounts = self._accounts_of(request.dataset)
        run = opened(self.runs.get(request.address), request)
        self.runs[request.address] = run
        return RunOpened(
            v=request.v,
            dataset=request.dataset,
            run=request.run,
            attempt=run.attempt,
            request=request.request,
            partition=place.partition,
            offset=place.offset,
            last_step=run.step,
            policy=policy_as_of(accounts.policy, request.v),
        )

    def _close_run(self, place: Place, request: CloseRun) -> RunClosed:
        self._accounts_of(request.dataset)
        run = under_current_attempt(self.runs.get(request.address), request)
        self.runs[request.address] = closed(run)
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

    def _charge(self, place: Place, charge: Charge) -> list[Output]:
        accounts = self._accounts_of(charge.dataset)
        run = under_current_attempt(self.runs.get(charge.address), charge)
        digest = charge_digest(charge)
        if charge.step == run.step:
            return [answer_to(charge, encode(stored_decision(run, charge, digest)))]
        check_next_step(run, charge)
        orders = len(accounts.policy.budget)
        check_size(charge, orders)
        plan = accounts.plan(charge)
        if charge.v == 1 and not fits_by_counts(charge, orders):
            check_values(charge, orders, *accounts.measure(plan))
        outcome = accounts.charge(plan)
        self._note(outcome.changes)
        decision = encode(decision_of(charge, digest, outcome, place))
        self.runs[charge.address] = msgspec.structs.replace(
            run, step=charge.step, digest=digest, decision=decision
        )
        return [
            answer_to(charge, decision),
            *(checkpoint_of(charge, *raised, place) for raised in outcome.raised),
        ]

    def _accounts_of(self, dataset: str) -> Accounts:
        try:
            return self.datasets[dataset]
        except KeyError:
            detail = f"dataset {dataset!r} does not exist; create it before anything is charged"
            raise Rejection(Reason.UNKNOWN_DATASET, detail) from None
