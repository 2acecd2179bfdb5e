"""The ledger of one partition: (state, record) -> (state, answers). No I/O, no clock.

``streams.ledger.datasets`` has the states of a dataset, ``streams.ledger.run_states`` those of a
run. Applying the same records to the same state gives the same bytes, on any machine.
"""

from __future__ import annotations

import msgspec

from streams.ledger.charging import charge, charge_roster, collect_norms, enrol
from streams.ledger.collecting import names_erased
from streams.ledger.datasets import (
    close_dataset,
    close_run,
    create_dataset,
    erase,
    open_run,
    set_access,
    withdraw_dataset,
)
from streams.ledger.erasure import ErasureKeys
from streams.ledger.outputs import Channel, Output, Place, answer_to, reject
from streams.ledger.partition_errors import (
    LayoutMismatch,
    LostErasureKey,
    PartitionError,
    UnknownState,
)
from streams.ledger.retirement import begin_import, check_retired, retire
from streams.ledger.roster_members import Rosters
from streams.ledger.run_states import RunState, counted
from streams.ledger.state import Delta, SavedState, State
from streams.records import (
    Allowed,
    Answer,
    Charge,
    ChargeRoster,
    CloseDataset,
    CloseRun,
    CreateDataset,
    Enrol,
    Erase,
    Holder,
    Import,
    NormEvent,
    NormEvents,
    OpenRun,
    Policy,
    Rejection,
    Request,
    Retire,
    Sender,
    SetAccess,
    WithdrawDataset,
    decode_signed,
    encode,
)
from streams.records.digests import NO_TOPIC, HashChain, genesis

MOST_RUNS = 500
"""The maximum in a summary, which is displayed every few seconds."""


class DatasetSummary(msgspec.Struct, frozen=True):
    """A dataset in one partition, in numbers."""

    policy: Policy
    users: int
    exhausted: int  # users with nothing left
    closed: bool = False
    allow: list[Allowed] | None = None  # the access list in force; None: the dataset is open
    holder: Holder | None = None  # the run that holds the budget, if one does
    worst_case: list[int] | None = None  # the units that are spent in the worst case, by order


class RunSummary(msgspec.Struct, frozen=True):
    """A run in one partition, in numbers."""

    dataset: str
    run: str
    attempt: int
    step: int  # the last one decided, -1 before the first
    closed: bool
    users: int | None = None  # in the last step, or members; None where that is not kept
    halted: int | None = None  # of these


class Summary(msgspec.Struct, frozen=True):
    """The state of a partition in numbers that are kept up to date."""

    datasets: dict[str, DatasetSummary]
    open_runs: int
    closed_runs: int
    runs: list[RunSummary] = []  # open ones first, by name, at most MOST_RUNS


def _run_summary(run: RunState, rosters: Rosters) -> RunSummary:
    address = run.dataset, run.run
    if run.of_roster and address in rosters:
        members = rosters.members[address]
        counts: tuple[int, int] | None = len(members), len(members.halted)
    else:
        counts = counted(run)
    users, halted = counts or (None, None)
    return RunSummary(run.dataset, run.run, run.attempt, run.step, run.closed, users, halted)


__all__ = [
    "Channel",
    "DatasetSummary",
    "Delta",
    "LayoutMismatch",
    "Ledger",
    "LostErasureKey",
    "Output",
    "PartitionError",
    "SavedState",
    "Summary",
    "UnknownState",
    "ledger_of",
]


def ledger_of(
    kept: SavedState,
    partition: int,
    partitions: int,
    topic: bytes,
    chain: HashChain,
    erasure_keys: str = "",
) -> Ledger:
    """Return the ledger of a partition in its stored state; the arguments are those of ``Ledger``.

    Raises:
        LayoutMismatch: the state is of another P.
        LostErasureKey: users were erased under a key that is not among these.
        UnknownState: another release wrote some of it.
        ValueError: pages are missing.
    """
    ledger = Ledger(partition, partitions, topic, erasure_keys)
    ledger.state.load(kept.pages, kept.changes)
    ledger.chain = chain
    return ledger


class Ledger:
    """Applies records to the state of one partition.

    Args:
        topic: the 16 bytes of the topic's id in Kafka.
        erasure_keys: the keys of hashes of erased users; see ``ErasureKeys``.

    Attributes:
        chain: the hash chain over the records applied so far; offsets without a record are not
            part of it.
    """

    def __init__(
        self,
        partition: int,
        partitions: int,
        topic: bytes = NO_TOPIC,
        erasure_keys: str = "",
    ) -> None:
        self.state = State(topic, partition, partitions, ErasureKeys(erasure_keys))
        self.erasure_keys = erasure_keys
        self.chain = genesis(topic, partition, partitions)

    def apply(self, offset: int, value: bytes | None) -> list[Output]:
        """Apply one record of the log and return the outputs to publish.

        A record that cannot be applied changes nothing and is returned on the rejects channel.

        Raises:
            PartitionError: the log is of another P, it begins with an imported state, or a
                signature cannot be verified here. Nothing has changed, the chain included.
        """
        place, request = Place(self.state.partition, offset), None
        try:
            request, sender = decode_signed(value)
            if self.state.retired:
                check_retired(self.state, request)
            self.state.authorization.check(request, sender)
            outputs = self._apply(place, request, sender, value or b"")
        except Rejection as rejection:
            request = request or rejection.request
            is_hidden = request is not None and names_erased(request, self.state.policies)
            run = self.state.runs.get(request.address) if request else None
            attempt = run.attempt if run else None
            outputs = [reject(value, request, rejection, attempt, place, names_erased=is_hidden)]
        self.chain = self.chain.after(offset, value)
        self.state.add_output_bytes(sum(output.size for output in outputs))
        return outputs

    def summary(self) -> Summary:
        """Return the state in a few numbers."""
        state = self.state
        runs = sorted(state.runs.items(), key=lambda entry: (entry[1].closed, entry[0]))
        datasets = {
            name: DatasetSummary(
                accounts.policy,
                len(accounts),
                accounts.exhausted_users,
                (name,) in state.closed,
                state.authorization.allowed(name),
                state.holds.get((name,)),
                state.worst_cases.of(accounts.policy),
            )
            for name, accounts in state.datasets.items()
        }
        return Summary(
            datasets,
            len(state.runs) - state.runs.closed,
            state.runs.closed,
            [_run_summary(run, state.rosters) for _, run in runs[:MOST_RUNS]],
        )

    def _apply(
        self, place: Place, request: Request, sender: Sender | None, value: bytes
    ) -> list[Output]:
        answer: Answer
        match request:
            case Charge():
                return charge(self.state, place, request)
            case ChargeRoster():
                return charge_roster(self.state, place, request)
            case NormEvent() | NormEvents():
                return collect_norms(self.state, place, request, value)
            case Erase():
                return erase(self.state, place, request, sender)
            case Enrol():
                return enrol(self.state, place, request)
            case CreateDataset():
                answer = create_dataset(self.state, place, request, sender)
            case WithdrawDataset():
                answer = withdraw_dataset(self.state, place, request)
            case OpenRun():
                answer = open_run(self.state, place, request)
            case CloseRun():
                answer = close_run(self.state, place, request)
            case CloseDataset():
                answer = close_dataset(self.state, place, request)
            case SetAccess():
                answer = set_access(self.state, place, request, sender)
            case Retire():
                answer = retire(self.state, place, request, self.chain.head)
            case Import():
                begin_import(self.chain, request)
        return [answer_to(request, encode(answer))]
