"""Moves a dataset, and all that are within it, from one log to another: all of it or nothing.

1. Both logs are applied, offline, up to their ends. What could not move is refused here, and so is
   who may not move it: where a dataset or a log asks for signatures, what is sent is signed.
2. The dataset is closed in the old log with the id of the new one: first where its name lives, so
   that of two who move it one is refused at once, then in the other partitions.
3. The old log is applied up to its new end. That the dataset is closed for this log, in every
   partition, is what the log says: nothing of it changes any more.
4. Every new partition is told of each dataset how many parts come and their digest; the outermost
   dataset first. It creates the dataset, or says how much of it is in.
5. The parts that are not in are sent, in their order; those of the outermost dataset first. Where
   somebody else is faster, it goes on behind what is in by then.
6. The new log is applied up to its end: it has to hold what the old one says.

Whoever breaks off begins again at 1 with the same words. Before 2 nothing was done. After it the
dataset is charged nowhere until 5 is done, and no log but the new one ever takes it. A run is
opened in all partitions, and no partition opens one before all parts of its own are in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from msgspec import UNSET, structs

from streams.ledger.ledger import Ledger
from streams.ledger.tracked import Address
from streams.offline.archive import Archive
from streams.offline.fold import Fold
from streams.offline.moves import Departure, Landing, Unmovable, departure
from streams.offline.receipts import Head, policies_digest
from streams.schemas import (
    VERSION,
    CloseDataset,
    DatasetReceived,
    Policy,
    Reason,
    Rejection,
    Sender,
    decode_signed,
    encode,
)
from streams.sdk.connection import Connection
from streams.sdk.errors import RequestRejected
from streams.topics.topics import NORMS
from streams.wire.partitioner import partitions_of
from streams.wire.requests import RequestSigner

Tell = Callable[[str], None]


@dataclass
class Moved:
    """What was moved, or would be.

    Attributes:
        landing: the family, as it leaves, and where it comes down.
        heads: of the old log, when the dataset was closed there.
        policies: the digest of all policies there.
        sent: records of balances that were sent by this move.
        parts: of so many.
    """

    landing: Landing
    heads: list[Head]
    policies: str
    sent: int = 0
    parts: int = 0

    @property
    def leaving(self) -> Departure:
        """The family, as it leaves."""
        return self.landing.leaving


class _Log:
    """A log that is applied up to its end, and on when it grows."""

    def __init__(self, archive: Archive, dataset: str) -> None:
        self.archive = archive
        self._dataset = dataset
        self._folds = [
            Fold(archive, partition, archive.extent(NORMS, partition))
            for partition in range(archive.partitions)
        ]
        for fold in self._folds:
            if fold.cut_off:
                raise Unmovable(f"partition {fold.ledger.partition}: {fold.cut_off}")
        self._closed: dict[int, Head] = {}
        self._erasure: dict[int, dict[Address, int]] = {}  # when the dataset was closed
        # Whether that was applied: of a log that was trimmed since, a checkpoint says more.
        self.saw_it_close = True
        self.go_on()

    @property
    def ledgers(self) -> list[Ledger]:
        """Of all partitions."""
        return [fold.ledger for fold in self._folds]

    @property
    def moves_to(self) -> list[str | None]:
        """To which log the dataset goes, by partition."""
        return [ledger.moved.get((self._dataset,)) for ledger in self.ledgers]

    def go_on(self) -> None:
        """Apply what has come since."""
        for fold in self._folds:
            partition = fold.ledger.partition
            fold.extent = self.archive.extent(NORMS, partition)
            self._note(fold)
            for _ in fold.steps():
                self._note(fold)

    def heads(self) -> list[Head]:
        """The heads as they were when the dataset was closed, or as they are."""
        return [
            self._closed.get(fold.ledger.partition) or _head_of(fold.ledger, fold.next)
            for fold in self._folds
        ]

    def departure(self) -> Departure:
        """What the dataset comes to.

        Raises:
            Unmovable: it cannot move as it is.
        """
        erasure = [
            self._erasure.get(ledger.partition, dict(ledger.erasure)) for ledger in self.ledgers
        ]
        return departure(self.ledgers, self.archive.topic, self.heads(), self._dataset, erasure)

    def _note(self, fold: Fold) -> None:
        partition = fold.ledger.partition
        if partition not in self._closed and (self._dataset,) in fold.ledger.moved:
            self._closed[partition] = _head_of(fold.ledger, fold.next)
            self._erasure[partition] = dict(fold.ledger.erasure)
            self.saw_it_close &= fold.records > 0


def plan(old: Archive, new: Archive, dataset: str, signer: RequestSigner | None = None) -> Moved:
    """What would be moved by who signs so; changes nothing.

    Raises:
        Unmovable: it cannot be, or not by this one.
        Unreadable: Kafka does not answer.
    """
    log, there = _Log(old, dataset), _Log(new, dataset)
    planned = _plan(log, there)
    _check_allowed(planned.leaving, (log, signer), (there, signer))
    return planned


def move(
    old: Archive,
    new: Archive,
    old_service: Connection,
    new_service: Connection,
    dataset: str,
    tell: Tell = lambda _: None,
) -> Moved:
    """Move a dataset, or go on with a move that was broken off.

    Args:
        old: the log that it is in.
        new: the log that takes it.
        old_service: which closes it; its signer signs what is sent there, if it has one.
        new_service: which takes it; the same.
        dataset: the outermost one.
        tell: is told what is done.

    Raises:
        Unmovable: it cannot be.
        RequestRejected: a service refused; the dataset is charged nowhere, or where it was.
        DecisionTimeout: a service did not answer; begin again.
        Unreadable: Kafka does not answer.
    """
    # Step 1.
    tell("applying both logs")
    log, there = _Log(old, dataset), _Log(new, dataset)
    planned = _plan(log, there)
    signed = (log, old_service.signer), (there, new_service.signer)
    _check_allowed(planned.leaving, *signed)
    # Step 2.
    tell(f"closing {dataset} in the old log")
    _close(old_service, dataset, new.topic.hex())
    # Step 3.
    log.go_on()
    if set(log.moves_to) != {new.topic.hex()}:
        raise Unmovable(
            f"partitions of the old log say that {dataset!r} goes to {log.moves_to}, and not all "
            f"of them to {new.topic.hex()}: it is charged nowhere until that is understood"
        )
    moved = _plan(log, there)
    # Step 4.
    policies = moved.leaving.policies
    received = [announce(new_service, moved, policy) for policy in policies]
    # Step 5.
    for policy, so_far in zip(policies, received, strict=True):
        tell(f"sending {policy.dataset}: {moved.leaving.users[policy.dataset]:,} users")
        for partition, count in so_far.items():
            send(new_service, moved, policy, partition, count)
    # Step 6.
    there.go_on()
    check(moved, there.ledgers)
    tell("the new log holds what the old one says")
    return moved


def compare(old: Archive, new: Archive, dataset: str) -> Moved:
    """Whether a new log took what an old one has given; changes nothing.

    Raises:
        Unmovable: it did not.
        Unreadable: Kafka does not answer.
    """
    log, there = _Log(old, dataset), _Log(new, dataset)
    moved = _plan(log, there)
    if set(log.moves_to) != {new.topic.hex()}:
        raise Unmovable(f"dataset {dataset!r} was not closed in the old log for this one")
    check(moved, there.ledgers)
    return moved


def check(moved: Moved, ledgers: list[Ledger]) -> None:
    """Whether a new log has all that was to come, and nothing else.

    Raises:
        Unmovable: it has not.
    """
    for policy in moved.leaving.policies:
        for ledger in ledgers:
            expected, _ = moved.landing.announcement(policy, ledger.partition, "-")
            arrival = ledger.arrivals.get((policy.dataset,))
            is_there = arrival is not None and arrival.is_of(expected) and arrival.is_complete
            if not is_there or ledger.policies[policy.dataset,] != expected.policy:
                raise Unmovable(
                    f"partition {ledger.partition} of the new log does not hold dataset "
                    f"{policy.dataset!r} as it left the old one"
                )


def _plan(log: _Log, there: _Log) -> Moved:
    to = there.archive.topic.hex()
    other = next((topic for topic in log.moves_to if topic not in (None, to)), None)
    if log.archive.topic == there.archive.topic:
        raise Unmovable("the old log and the new one are the same: name another prefix")
    if other is not None:
        raise Unmovable(
            f"the dataset was closed to move to the log {other}, and goes to no other one: this "
            f"one is {to}. If you do not find that log, ask who began the move"
        )
    leaving, heads = log.departure(), log.heads()
    for policy in leaving.policies:
        for ledger in there.ledgers:
            arrival = ledger.arrivals.get((policy.dataset,))
            if arrival is None and (policy.dataset,) in ledger.policies:
                raise Unmovable(
                    f"dataset {policy.dataset!r} exists in the new log, and is not what comes from "
                    "the old one. If nobody has used it, withdraw it there; else use another prefix"
                )
            if arrival is not None and arrival.origin.topic == leaving.origin.topic:
                # What is said once is said again, also if the old log was trimmed since.
                origin = structs.replace(leaving.origin, heads=arrival.origin.heads)
                leaving = replace(leaving, origin=origin)
                if not log.saw_it_close:  # who was forgotten elsewhere since has added keys
                    leaving = replace(leaving, erasure=arrival.erasure)
    policies = policies_digest(
        [
            {name: encode(policy) for (name,), policy in ledger.policies.items()}
            for ledger in log.ledgers
        ]
    )
    return Moved(Landing(leaving, there.archive.partitions), heads, policies)


def _check_allowed(
    leaving: Departure,
    old: tuple[_Log, RequestSigner | None],
    new: tuple[_Log, RequestSigner | None],
) -> None:
    """Whether both logs take what will be sent, before one of them gives the dataset away.

    Args:
        leaving: the family.
        old: the log that it is in, and who signs what is sent there.
        new: the one that takes it, the same.

    Raises:
        Unmovable: one of them does not.
    """
    around: dict[str, list[Policy]] = {}  # each policy, and those it is within
    for policy in leaving.policies:
        outer = [] if policy.within is UNSET else around[policy.within]
        around[policy.dataset] = [policy, *outer]
    outermost = leaving.policies[0]
    for which, (log, signer) in (("old", old), ("new", new)):
        for ledger in log.ledgers:
            sender = _sender(ledger, outermost.dataset, signer)
            try:
                if which == "old":
                    ledger.gate.check_manager([outermost], sender)
                    continue
                for policy, *outer in around.values():
                    ledger.gate.check_arrival(policy, outer, sender)
                    ledger.gate.check_manager([policy, *outer], sender)
            except Rejection as rejection:
                raise Unmovable(
                    f"partition {ledger.partition} of the {which} log would refuse it: "
                    f"{rejection.detail}. Set principal and request_key to those of somebody whom "
                    "both logs know and who manages all that moves"
                ) from rejection


def _sender(ledger: Ledger, dataset: str, signer: RequestSigner | None) -> Sender | None:
    """Who sends requests about a dataset to a partition."""
    if signer is None:
        return None
    anything = encode(CloseDataset(v=VERSION, dataset=dataset, request="-"))
    return decode_signed(signer.sign(ledger.topic, ledger.partition, anything))[1]


def _close(service: Connection, dataset: str, to: str) -> None:
    home = int(partitions_of([dataset], service.partitions)[0])
    others = [partition for partition in range(service.partitions) if partition != home]
    for somewhere in ([home], others):
        token = service.new_token()
        request = CloseDataset(v=VERSION, dataset=dataset, request=token, moves_to=to)
        requests = dict.fromkeys(somewhere, encode(request))
        service.ask(token, requests, service.deadline(None))


def announce(service: Connection, moved: Moved, policy: Policy) -> Mapping[int, int]:
    """Tell all new partitions what comes; how many parts each of them has.

    Raises:
        Unmovable: what one of them has is something else.
    """
    return _told(service, moved, policy, range(service.partitions))


def send(service: Connection, moved: Moved, policy: Policy, partition: int, received: int) -> None:
    """Send the parts that a new partition does not have."""
    for part in moved.landing.parts(policy, partition):
        moved.parts += 1
        if part.part < received:
            continue
        token = service.new_token()
        request = structs.replace(part, request=token)
        try:
            service.ask(token, {partition: encode(request)}, service.deadline(None))
        except RequestRejected as rejection:
            if rejection.reason is not Reason.STEP_OUT_OF_ORDER:
                raise
            # Somebody else moves the same, or a request of before was late: it has more by now.
            received = _told(service, moved, policy, [partition])[partition]
            if received <= part.part:
                raise
        else:
            moved.sent += 1


def _told(
    service: Connection, moved: Moved, policy: Policy, partitions: Iterable[int]
) -> Mapping[int, int]:
    token = service.new_token()
    announced = {
        partition: moved.landing.announcement(policy, partition, token) for partition in partitions
    }
    requests = {partition: encode(request) for partition, (request, _) in announced.items()}
    answers = service.ask(token, requests, service.deadline(None))
    received = {}
    for partition, answer in answers.items():
        assert isinstance(answer, DatasetReceived)
        _, digests = announced[partition]
        if answer.digest != digests[answer.received]:
            raise Unmovable(
                f"the first {answer.received} parts of {policy.dataset!r} in partition {partition} "
                "of the new log are not those of the old one: begin again with another prefix"
            )
        received[partition] = answer.received
    return received


def _head_of(ledger: Ledger, offset: int) -> Head:
    return Head(ledger.partition, offset, ledger.chain.head.hex())
