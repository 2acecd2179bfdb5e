"""The comparison of a stored state with the log, and the reasons why a partition is suspended.

``Suspensions.misfit`` is the one place that compares a state with a log: acquisitions, restores,
``status``, ``trim`` and replays ask it.

A suspended partition applies, writes and publishes nothing. It stays suspended until the workers
are restarted and find the cause removed. The worker logs the reason and stores it in Redis beside
the partition, and ``turnstile status`` shows it. A remedy that would forget what was spent says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streams.ledger.partition_errors import PartitionError
from streams.store.layout import KEYS, LAYOUT, Damaged, Identity, key_of
from streams.store.store_port import SuspensionReason

SNAPSHOT_SECTION = "docs/operate/runbooks.md, 'Rebuild a partition from the log'"


@dataclass(frozen=True)
class Problem:
    """Why a partition is not decided: ``reason`` for programs, the others for people."""

    reason: str
    problem: str
    remedy: str


@dataclass(frozen=True)
class Suspension(Problem):
    """Why a partition is suspended, and what the operator can do."""

    reason: SuspensionReason

    def __str__(self) -> str:
        return f"{self.problem}. {self.remedy}"


class PartitionSuspended(Exception):
    """Raised if a partition has to be suspended."""

    def __init__(self, suspension: Suspension) -> None:
        super().__init__(str(suspension))
        self.suspension = suspension


@dataclass(frozen=True)
class Suspensions:
    """The possible suspensions of one partition, whose log is the one described here."""

    prefix: str  # of topics and Redis keys
    partition: int
    topic: bytes  # the 16 bytes of the id that the topic norms has now
    partitions: int  # P, its present number of partitions
    log_start: int  # the offset of the first record of the partition
    log_end: int  # the offset after the last one
    holder: str = "Redis"  # where the state comes from that may not fit, or "the snapshot"

    @property
    def identity(self) -> Identity:
        """The identity of a state of this log."""
        return Identity(str(LAYOUT), self.topic.hex(), str(self.partitions))

    def misfit(self, state: Identity, next_offset: int | None = None) -> Suspension | None:
        """Return why the log does not continue a state, if it does not.

        ``next_offset`` is where the state continues; None to compare no offset.
        """
        ours = self.identity
        # In this order: without the layout, the other fields may mean something else.
        if state.layout != ours.layout:
            return self.other_layout(state.layout)
        if state.topic != ours.topic:
            return self.other_log(state.topic)
        if state.partitions != ours.partitions:
            return self.other_partitions(state.partitions)
        return None if next_offset is None else self.out_of_log(next_offset)

    def unusable(self, fields: Mapping[str, str]) -> Suspension | None:
        """Return why the log does not continue the state with a meta, or that meta is damaged."""
        try:
            return self.misfit(Identity.of(fields))
        except Damaged as damaged:
            return Suspension(
                SuspensionReason.DAMAGED,
                f"the state in Redis is damaged: {damaged}",
                "Restart the workers: the one that acquires the partition restores its state from "
                "the snapshot and the log",
            )

    def out_of_log(self, next_offset: int) -> Suspension | None:
        """Return why the log cannot be continued at an offset, if it cannot."""
        if next_offset > self.log_end:
            return self.log_ends_early(next_offset)
        return self.log_begins_late(next_offset) if next_offset < self.log_start else None

    def foreign(self) -> Suspension:
        """Return the suspension for a key with a kind of value that no worker writes."""
        return Suspension(
            SuspensionReason.DAMAGED,
            "a key of this partition in Redis holds a value of a kind that no worker writes",
            "Find out which program writes to this Redis under the same prefix, and stop it. Then: "
            f"{_lower(self._delete_keys())}. The worker restores the state from the snapshot and "
            "the log",
        )

    def other_layout(self, found: str) -> Suspension:
        """Return the suspension for state in a layout that this worker does not read.

        ``found`` is its layout, or what of it is unknown here.
        """
        return Suspension(
            SuspensionReason.OTHER_LAYOUT,
            f"{self._holder} holds state of another layout ({found}), and this worker reads layout "
            f"{LAYOUT}",
            f"Run the release that wrote the state. Or rebuild it: "
            f"{_lower(self._rebuild_from_log())}, and nothing that was spent is forgotten"
            if self.log_start == 0
            else f"{self._log_is_trimmed()}. Run the release that wrote the state",
        )

    def damaged(self, what: str, obstacle: Suspension | None = None) -> Suspension:
        """Return the suspension for an incomplete state in Redis that the worker cannot restore.

        Args:
            what: what is missing.
            obstacle: why snapshot and log do not replace it; None if they did, and the state is
                incomplete again.
        """
        if obstacle is None:
            return Suspension(
                SuspensionReason.DAMAGED,
                f"the state in Redis is incomplete ({what}), although the worker had just built it "
                "from the log",
                "Find out what deletes or overwrites keys of this Redis (maxmemory-policy, another "
                "program), stop it, and start the workers again",
            )
        return Suspension(
            SuspensionReason.DAMAGED,
            f"the state in Redis is incomplete ({what}), and snapshot and log do not replace it: "
            f"{obstacle.problem}",
            obstacle.remedy,
        )

    def other_log(self, known: str) -> Suspension:
        """Return the suspension for a state of another topic with the same name."""
        found = self.topic.hex()
        remedy = "Restore the topic, with its id, from a copy of Kafka's data"
        if self.log_start == 0:
            remedy += (
                ". Only if the topic that is there now contains the same records again: "
                f"{_lower(self._rebuild_from_log())}. Budgets that missing records spent would be "
                "available again"
            )
        return Suspension(
            SuspensionReason.OTHER_LOG,
            f"the state in {self.holder} belongs to the topic with id {known}, and "
            f"{self.prefix}norms has the id {found} now: it was deleted"
            + (" and created again" if found.strip("0") else ""),
            remedy,
        )

    def other_partitions(self, known: str) -> Suspension:
        """Return the suspension for a topic to which partitions were added."""
        return Suspension(
            SuspensionReason.OTHER_PARTITIONS,
            f"users were charged in {known} partitions, and {self.prefix}norms has "
            f"{self.partitions} now: most users would have a second budget in another partition",
            "Kafka cannot remove partitions. Create the topics with that number of partitions, "
            f"{known}, under another prefix, copy the records of the first {known} partitions of "
            f"{self.prefix}norms there, each in its order, and let workers and clients use that "
            "prefix: what was spent is applied again. Without these records another prefix forgets "
            "every budget that was spent",
        )

    def topics(self, problem: str) -> Suspension:
        """Return the suspension for topics that could lose records; ``problem`` says what to do."""
        return Suspension(
            SuspensionReason.TOPICS,
            problem,
            "Until then the workers decide nothing, because records could be missing",
        )

    def log_ends_early(self, next_offset: int) -> Suspension:
        """Return the suspension for a log whose applied records are gone."""
        return Suspension(
            SuspensionReason.LOG_ENDS_EARLY,
            f"{self._holder} continues at offset {next_offset}, beyond the end of the log, "
            f"{self.log_end}: Kafka lost records that were decided",
            "Restore the log from a copy that has them (docs/operate/backup.md). Until then only "
            f"{self.holder} knows what they spent: delete nothing there",
        )

    def log_begins_late(self, next_offset: int) -> Suspension:
        """Return the suspension for a log whose records were deleted before they were applied."""
        return Suspension(
            SuspensionReason.LOG_BEGINS_LATE,
            f"{self._holder} continues at offset {next_offset}, before the start of the log, "
            f"{self.log_start}: the records between were deleted",
            "A worker that starts restores a snapshot that covers them, if there is one. Otherwise "
            "restore Redis from a newer copy, or the log from a copy that begins no later than "
            f"{next_offset}",
        )

    def snapshot_damaged(self, what: str) -> Suspension:
        """Return the suspension for an incomplete snapshot that would have to be restored."""
        return Suspension(
            SuspensionReason.SNAPSHOT,
            f"Redis does not have the state, the log begins at offset {self.log_start}, and the "
            f"last snapshot in {self.prefix}snapshots is incomplete: {what}",
            "Start the workers again: another worker may just have been writing the snapshot. If "
            f"it stays incomplete, restore Redis or the topic {self.prefix}snapshots from a copy",
        )

    def restoring(self, next_offset: int) -> Suspension:
        """Return the state of a partition during a restore, to be shown as a suspension."""
        return Suspension(
            SuspensionReason.RESTORING,
            f"its state is being restored from the snapshot at offset {next_offset}",
            "Wait: decisions follow without any action",
        )

    def log_rewritten(self, offset: int, what: str) -> Suspension:
        """Return the suspension for a log with another record where the last one was applied."""
        remedy = "Restore the log from a copy"
        if self.log_start == 0:
            remedy += (
                f". Only if this log is the right one: {_lower(self._rebuild_from_log())}. Budgets "
                "that other records spent would be available again"
            )
        return Suspension(
            SuspensionReason.LOG_REWRITTEN,
            f"{what} at offset {offset}, where the last record was applied: the log was rewritten",
            remedy,
        )

    def hole(self, expected: int, found: int) -> Suspension:
        """Return the suspension for a log that lacks records between two others."""
        return Suspension(
            SuspensionReason.HOLE,
            f"the log continues at offset {found}, and offset {expected} has to be applied next: "
            "records were deleted or compacted away",
            "Restore the log from a copy",
        )

    @property
    def _holder(self) -> str:
        return self.holder[0].upper() + self.holder[1:]

    def _rebuild_from_log(self) -> str:
        """Return how to build the state from a log that begins at offset 0.

        A snapshot that does not fit would suspend the partition again, so both go. The topic has
        the snapshots of all partitions: the others may be the only trace of a trimmed log.
        """
        return (
            f"{self._delete_keys()} after deleting the snapshot of partition {self.partition}, "
            f"and of no other partition, from {self.prefix}snapshots ({SNAPSHOT_SECTION}). "
            "The log of this partition begins at offset 0, so all of it is applied again"
        )

    def _log_is_trimmed(self) -> str:
        return (
            f"The log begins at offset {self.log_start}: without Redis and the snapshot, what "
            "was spent before is forgotten, so delete neither"
        )

    def _delete_keys(self) -> str:
        keys = " ".join(f"'{key_of(self.prefix, self.partition, name)}'" for name in KEYS)
        return f"Stop the workers, run `redis-cli -c DEL {keys}`, and start them again"


def suspension_of(error: PartitionError) -> Suspension:
    """Return the suspension for a ledger that cannot continue."""
    return Suspension(SuspensionReason(error.reason), error.problem, error.remedy)


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
