"""One partition of the log, applied: (state, record) -> (state, answers). No I/O, no clock.

``streams.ledger.lifecycle`` has the states of a dataset, ``streams.ledger.runs`` those of a run.
Applying the same records to the same state gives the same bytes, on any machine.
"""

from __future__ import annotations

import msgspec

from streams.ledger.accrual import wake
from streams.ledger.charging import charge, charge_roster, enrol
from streams.ledger.columns import UnknownState
from streams.ledger.erasing import erase
from streams.ledger.erasure import ErasureKeys, LostErasureKey
from streams.ledger.lifecycle import (
    close_dataset,
    close_run,
    create_dataset,
    end_runs,
    open_run,
    set_access,
    withdraw_dataset,
)
from streams.ledger.outputs import Channel, Output, Place, answer_to, reject
from streams.ledger.partition_error import PartitionError
from streams.ledger.retirement import begin_import, check_agreement, check_live, retire
from streams.ledger.state import Changes, Kept, LayoutMismatch, State
from streams.ledger.summaries import DatasetSummary, Summary, summary_of
from streams.records import (
    Answer,
    Charge,
    ChargeRoster,
    CloseDataset,
    CloseRun,
    CreateDataset,
    Enrol,
    Erase,
    Import,
    OpenRun,
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

__all__ = [
    "Changes",
    "Channel",
    "DatasetSummary",
    "Kept",
    "LayoutMismatch",
    "Ledger",
    "LostErasureKey",
    "Output",
    "PartitionError",
    "Summary",
    "UnknownState",
    "ledger_of",
]


def ledger_of(
    kept: Kept,
    partition: int,
    partitions: int,
    topic: bytes,
    chain: HashChain,
    erasure_keys: str = "",
) -> Ledger:
    """The state of a partition as it was committed last.

    Args:
        kept: what is stored of it.
        partition: which one.
        partitions: P of the topic.
        topic: the 16 bytes of the topic's id in Kafka.
        chain: the digest of the log up to there.
        erasure_keys: by which users who were erased are known again; see ``ErasureKeys``.

    Raises:
        LayoutMismatch: the state is of another P.
        LostErasureKey: users were erased under a key that is not among these.
        UnknownState: another release wrote some of it.
    """
    ledger = Ledger(partition, partitions, topic, erasure_keys)
    ledger.state.load(kept.pages)
    for changes in kept.changes:
        ledger.state.put_back(msgspec.msgpack.decode(changes, type=Changes))
    ledger.state.check_whole()
    ledger.chain = chain
    return ledger


class Ledger:
    """Applies records to the state of one partition.

    Attributes:
        state: all datasets and runs of the partition.
        erasure_keys: by which users who were erased are known again.
        chain: the digest of the records applied so far. Offsets that hold no record leave it as
            it is: they are not applied.
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
        """Apply one record of the log; what comes back is to be published.

        A record that cannot be applied changes nothing and comes back on the rejects channel.

        Raises:
            PartitionError: the log is of another P, it begins with an imported state, a signature
                cannot be verified here, or the record has users who were erased under a key that
                is missing here. Nothing has changed, the chain included.
        """
        place, request = Place(self.state.partition, offset), None
        try:
            request, sender = decode_signed(value)
            check_live(self.state, request)
            self.state.authorization.check(request, sender)
            outputs = self._apply(place, request, sender)
        except Rejection as rejection:
            request = request or rejection.request
            run = self.state.runs.get(request.address) if request else None
            outputs = [reject(value, request, rejection, run.attempt if run else None, place)]
        self.chain = self.chain.after(offset, value)
        self.state.add_output_bytes(sum(output.size for output in outputs))
        return outputs

    def wake(self) -> None:
        """Restore all rosters from their stored state, so that they can be read."""
        for name in self.state.datasets:
            wake(self.state, self.state.policies.budgets(name))

    def summary(self) -> Summary:
        """Return the state in a few numbers."""
        return summary_of(self.state)

    def _apply(self, place: Place, request: Request, sender: Sender | None) -> list[Output]:
        answer: Answer
        match request:
            case Charge():
                return charge(self.state, place, request)
            case ChargeRoster():
                return charge_roster(self.state, place, request)
            case Erase():
                return erase(self.state, place, request, sender)
            case Enrol():
                answer = enrol(self.state, place, request)
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
                check_agreement(self.state, request)
                end_runs(self.state)
                answer = retire(self.state, place, request, self.chain.head)
            case Import():
                begin_import(self.chain, request)
        return [answer_to(request, encode(answer))]
