"""One partition's fold of the log: (state, record) -> (state, answers). No I/O, no clock.

A run, as one partition sees it:

    (unknown) --open-run a--> attempt a, step -1
    attempt a, step s --charge a, s + 1--> attempt a, step s + 1        charged, decided
    attempt a, step s --charge a, s, same content--> unchanged          the stored decision again
    attempt a, step s --open-run b > a--> attempt b, step s             fences attempt a
    anything else is refused and changes nothing

Replaying the same records from the same state gives the same bytes, on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import msgspec

from streams.accounts import Accounts, AccountsDelta, Outcome, Page
from streams.chain import NO_TOPIC, Chain, genesis
from streams.packing import charge_digest, pack_bits, pack_norms, pack_users
from streams.policies import check_policy
from streams.schemas import (
    MAX_REQUEST_BYTES,
    Answer,
    Charge,
    CreateDataset,
    DatasetCreated,
    Decision,
    OdometerCheckpoint,
    OpenRun,
    Policy,
    Reason,
    Refused,
    Rejected,
    Request,
    RunOpened,
    decode_request,
    encode,
    odometer_key,
)


class Channel(Enum):
    """Where an output goes."""

    HALTS = "halts"
    ODOMETER = "odometer"
    REJECTS = "rejects"


class Output(msgspec.Struct, frozen=True, array_like=True):
    """A record to publish once the state that led to it is safe."""

    channel: Channel
    key: bytes | None
    value: bytes


class RunState(msgspec.Struct, frozen=True, array_like=True):
    """Where a run stands in one partition."""

    dataset: str
    run: str
    attempt: int
    request: str  # the token of the attempt: two trainers cannot share a number
    step: int = -1
    digest: bytes = b""
    decision: bytes = b""  # of the last step, as published


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What a batch of records changed: new values, in the order in which they were set."""

    policies: list[Policy]
    accounts: list[AccountsDelta]
    runs: list[RunState]


class Kept(Protocol):
    """What a store keeps of a partition: folded state, then the deltas since, in order."""

    @property
    def folded(self) -> dict[str, bytes]:
        """Field -> packed state."""

    @property
    def deltas(self) -> list[bytes]:
        """Packed ``Delta`` records."""


def ledger_of(kept: Kept, partition: int, partitions: int) -> Ledger:
    """The state of a partition as it was committed last."""
    ledger = Ledger(partition, partitions)
    ledger.load(kept.folded)
    for delta in kept.deltas:
        ledger.replay(msgspec.msgpack.decode(delta, type=Delta))
    return ledger


@dataclass
class Ledger:
    """All datasets and runs of one partition."""

    partition: int
    partitions: int
    datasets: dict[str, Accounts] = field(default_factory=dict)
    runs: dict[tuple[str, str], RunState] = field(default_factory=dict)
    chain: Chain = field(default_factory=lambda: genesis(NO_TOPIC, 0, 1))
    _policies: list[Policy] = field(default_factory=list)
    _accounts: list[AccountsDelta] = field(default_factory=list)
    _touched_runs: dict[tuple[str, str], None] = field(default_factory=dict)
    _unfolded_policies: set[str] = field(default_factory=set)
    _unfolded_runs: set[tuple[str, str]] = field(default_factory=set)

    def apply(self, offset: int, value: bytes | None) -> list[Output]:
        """Apply one record of the log; what comes back is to be published.

        A record that cannot be applied changes nothing and comes back on the rejects channel.
        """
        request: Request | None = None
        self.chain = self.chain.then(offset, value)
        try:
            request = decode_request(value)
            match request:
                case CreateDataset():
                    return [self._halts(self._create_dataset(offset, request))]
                case OpenRun():
                    return [self._halts(self._open_run(offset, request))]
                case Charge():
                    return self._charge(offset, request)
                case _:
                    raise Refused(Reason.MALFORMED, "not supported yet")
        except Refused as refusal:
            return [self._reject(offset, value or b"", request, refusal)]

    def take_delta(self) -> Delta:
        """What changed since the last call."""
        delta = Delta(self._policies, self._accounts, [self.runs[k] for k in self._touched_runs])
        self._policies, self._accounts, self._touched_runs = [], [], {}
        return delta

    def replay(self, delta: Delta) -> None:
        """Set what a delta of an earlier owner of this partition says."""
        for policy in delta.policies:
            self._set_policy(policy)
        for accounts in delta.accounts:
            self.datasets[accounts.dataset].apply(accounts)
        for run in delta.runs:
            self._set_run(run)
        self.take_delta()

    def load(self, fields: dict[str, bytes]) -> None:
        """Put back what ``unfolded`` and ``fold`` wrote, in any order of the fields."""
        pages: dict[tuple[str, int], bytes] = {}
        for name, value in fields.items():
            kind, _, rest = name.partition(":")
            if kind == "policy":
                self._set_policy(msgspec.msgpack.decode(value, type=Policy))
            elif kind == "run":
                self._set_run(msgspec.msgpack.decode(value, type=RunState))
            else:
                dataset, _, number = rest.rpartition("/")
                pages[dataset, int(number)] = value
        for (dataset, page), value in sorted(pages.items()):
            self.datasets[dataset].load_page(page, msgspec.msgpack.decode(value, type=Page))
        self.take_delta()
        self._unfolded_policies.clear()
        self._unfolded_runs.clear()

    def unfolded(self) -> list[str]:
        """The fields that differ from what was last folded, in an order that may stop anywhere."""
        names = [f"policy:{dataset}" for dataset in sorted(self._unfolded_policies)]
        names += [
            f"page:{dataset}/{number}"
            for dataset, accounts in self.datasets.items()
            for number in accounts.dirty_pages()
        ]
        return names + [f"run:{dataset}/{run}" for dataset, run in sorted(self._unfolded_runs)]

    def fold(self, name: str) -> bytes:
        """The value of one field as it stands now; from here on it counts as folded."""
        kind, _, rest = name.partition(":")
        if kind == "policy":
            self._unfolded_policies.discard(rest)
            return encode(self.datasets[rest].policy)
        dataset, _, last = rest.rpartition("/")
        if kind == "run":
            self._unfolded_runs.discard((dataset, last))
            return encode(self.runs[dataset, last])
        return encode(self.datasets[dataset].take_page(int(last)))

    def _create_dataset(self, offset: int, request: CreateDataset) -> DatasetCreated:
        policy = request.policy
        check_policy(policy)
        if policy.partitions != self.partitions:
            detail = f"the topic has {self.partitions} partitions, not {policy.partitions}"
            raise Refused(Reason.INVALID_POLICY, detail)
        accounts = self.datasets.get(policy.dataset)
        if accounts is None:
            self._set_policy(policy)
        elif accounts.policy != policy:
            detail = (
                f"dataset {policy.dataset!r} exists with another policy ({accounts.policy}); "
                "a policy never changes: create a dataset with another name"
            )
            raise Refused(Reason.POLICY_CHANGED, detail)
        return DatasetCreated(
            request=request.request, partition=self.partition, offset=offset, policy=policy
        )

    def _open_run(self, offset: int, request: OpenRun) -> RunOpened:
        accounts = self._accounts_of(request.dataset)
        run = self.runs.get((request.dataset, request.run))
        opened = RunState(request.dataset, request.run, request.attempt, request.request)
        if run is not None:
            taken = request.attempt == run.attempt and request.request != run.request
            if request.attempt < run.attempt or taken:
                detail = f"attempt {request.attempt} is not newer than attempt {run.attempt}"
                raise Refused(Reason.OLDER_ATTEMPT, detail)
            opened = msgspec.structs.replace(run, attempt=request.attempt, request=request.request)
        self._set_run(opened)
        return RunOpened(
            dataset=request.dataset,
            run=request.run,
            attempt=request.attempt,
            request=request.request,
            partition=self.partition,
            offset=offset,
            last_step=opened.step,
            policy=accounts.policy,
        )

    def _charge(self, offset: int, charge: Charge) -> list[Output]:
        accounts = self._accounts_of(charge.dataset)
        run = self._run_of(charge)
        digest = charge_digest(charge)
        if charge.step == run.step:
            return [self._halts(_stored_decision(run, charge, digest))]
        if charge.step != run.step + 1:
            detail = f"step {charge.step} does not follow step {run.step}, the last one decided"
            raise Refused(Reason.STEP_OUT_OF_ORDER, detail)
        outcome = accounts.charge(charge)
        self._accounts.append(outcome.delta)
        decision = encode(self._decision(offset, charge, digest, outcome))
        self._set_run(
            msgspec.structs.replace(run, step=charge.step, digest=digest, decision=decision)
        )
        return [
            Output(Channel.HALTS, charge.run.encode(), decision),
            *(self._checkpoint(offset, charge.dataset, *raised) for raised in outcome.raised),
        ]

    def _accounts_of(self, dataset: str) -> Accounts:
        try:
            return self.datasets[dataset]
        except KeyError:
            detail = f"dataset {dataset!r} does not exist; create it before anything is charged"
            raise Refused(Reason.UNKNOWN_DATASET, detail) from None

    def _run_of(self, charge: Charge) -> RunState:
        run = self.runs.get((charge.dataset, charge.run))
        if run is None or charge.attempt > run.attempt:
            detail = f"attempt {charge.attempt} of run {charge.run!r} was never opened"
            raise Refused(Reason.UNKNOWN_RUN, detail)
        if charge.attempt < run.attempt:
            detail = f"attempt {charge.attempt} was fenced by attempt {run.attempt}"
            raise Refused(Reason.OLDER_ATTEMPT, detail)
        return run

    def _decision(self, offset: int, charge: Charge, digest: bytes, outcome: Outcome) -> Decision:
        users, admitted = outcome.users, outcome.admitted
        halted = (
            [user for user, is_in in zip(users, admitted.tolist(), strict=True) if not is_in]
            if isinstance(users, list)
            else users[~admitted]
        )
        return Decision(
            dataset=charge.dataset,
            run=charge.run,
            attempt=charge.attempt,
            step=charge.step,
            partition=self.partition,
            offset=offset,
            digest=digest,
            users=len(users),
            admitted=pack_bits(admitted),
            exhausted=pack_bits(outcome.exhausted),
            halted=pack_users(halted),
            clipped=outcome.clipped.astype("<u4").tobytes(),
            granted=pack_norms(outcome.granted),
        )

    def _checkpoint(self, offset: int, dataset: str, user: int | str, bound: list[float]) -> Output:
        checkpoint = OdometerCheckpoint(
            dataset=dataset, user=user, partition=self.partition, offset=offset, bound=bound
        )
        return Output(Channel.ODOMETER, odometer_key(dataset, user), encode(checkpoint))

    def _halts(self, answer: Answer) -> Output:
        key = answer.policy.dataset if isinstance(answer, DatasetCreated) else answer.run
        return Output(Channel.HALTS, key.encode(), encode(answer))

    def _reject(
        self, offset: int, value: bytes, request: Request | None, refusal: Refused
    ) -> Output:
        dataset = run = token = attempt = step = current = None
        match request:
            case CreateDataset():
                dataset, token = request.policy.dataset, request.request
            case OpenRun() | Charge():
                dataset, run, attempt = request.dataset, request.run, request.attempt
                known = self.runs.get((dataset, run))
                current = known.attempt if known else None
        match request:
            case OpenRun():
                token = request.request
            case Charge():
                step = request.step
        rejected = Rejected(
            partition=self.partition,
            offset=offset,
            reason=refusal.reason,
            detail=refusal.detail,
            record=value[:MAX_REQUEST_BYTES],
            dataset=dataset,
            run=run,
            attempt=attempt,
            step=step,
            request=token,
            current_attempt=current,
        )
        return Output(Channel.REJECTS, run.encode() if run else None, encode(rejected))

    def _set_policy(self, policy: Policy) -> None:
        if policy.dataset not in self.datasets:
            self.datasets[policy.dataset] = Accounts(policy, self.partition)
        self._policies.append(policy)
        self._unfolded_policies.add(policy.dataset)

    def _set_run(self, run: RunState) -> None:
        self.runs[run.dataset, run.run] = run
        self._touched_runs[run.dataset, run.run] = None
        self._unfolded_runs.add((run.dataset, run.run))


def _stored_decision(run: RunState, charge: Charge, digest: bytes) -> Decision:
    if digest != run.digest:
        detail = f"step {charge.step} was already charged with other content"
        raise Refused(Reason.STEP_CONTENT_CHANGED, detail)
    decision = msgspec.msgpack.decode(run.decision, type=Decision)
    return msgspec.structs.replace(decision, attempt=charge.attempt)
