"""Why a partition decides nothing, and what an operator can do about it.

A partition that stops stays stopped: nothing is applied, written or published until the workers
are started again and find that what was wrong is right. The stop is logged, kept in Redis beside
the partition, and shown by ``turnstile status``. No advice here forgets what was spent, or says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from streams.ledger.impasse import Impasse
from streams.store.layout import KEYS, LAYOUT, key_of


class StopReason(StrEnum):
    """What is wrong, in the order in which a claim looks."""

    OTHER_LAYOUT = "other-layout"  # another release wrote the state
    DAMAGED = "damaged"  # part of the state is gone, or older than the rest
    OTHER_LOG = "other-log"  # the topic was deleted and created again
    OTHER_PARTITIONS = "other-partitions"  # partitions were added to the topic
    TOPICS = "topics"  # settings under which records would be lost
    LOG_ENDS_EARLY = "log-ends-early"  # records that were applied are gone
    LOG_BEGINS_LATE = "log-begins-late"  # records that were not applied are gone
    LOG_REWRITTEN = "log-rewritten"  # the last record applied is another one now
    HOLE = "hole"  # a record that has to be applied next is missing
    CHECKPOINT = "checkpoint"  # the last checkpoint, which is needed, is not whole
    ERASURE_KEY = "erasure-key"  # users were forgotten under a key that this worker does not have
    OPERATOR_KEY = "operator-key"  # who may say whose keys count is not known, or not to be told
    REBUILDING = "rebuilding"  # no stop: the state is built again, and then goes on by itself


@dataclass(frozen=True)
class Stop:
    """Why a partition decides nothing, and what to do."""

    reason: StopReason
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}. {self.remedy}"


@dataclass(frozen=True)
class Stops:
    """The stops of one partition.

    Attributes:
        prefix: of topics and Redis keys.
        partition: its number.
        log_start: the offset at which its log begins.
        holder: what has the state that is looked at, Redis or the checkpoint.
    """

    prefix: str
    partition: int
    log_start: int
    holder: str = "Redis"

    def other_layout(self, found: str) -> Stop:
        """What is in Redis was written by another release."""
        if found.isdecimal() and int(found) > LAYOUT:
            return Stop(
                StopReason.OTHER_LAYOUT,
                f"{self._holder} holds state of layout {found}, and this worker reads layout "
                f"{LAYOUT}",
                "A newer release wrote it: run that one",
            )
        return Stop(
            StopReason.OTHER_LAYOUT,
            f"{self._holder} holds state of layout {found or 1}, which an earlier release wrote "
            "and which cannot prove that nothing is missing from it",
            self._apply_again(),
        )

    def later_release(self, what: str) -> Stop:
        """The layout is the same, and a kind of state in it is new."""
        return Stop(
            StopReason.OTHER_LAYOUT,
            f"Redis holds {what}, which this worker does not know",
            "A newer release wrote it: run that one",
        )

    def damaged(self, what: str) -> Stop:
        """Part of what is in Redis is gone, or older than the rest."""
        return Stop(
            StopReason.DAMAGED,
            f"the state in Redis is not whole: {what}",
            self._apply_again(),
        )

    def other_log(self, known: str, found: str) -> Stop:
        """The state belongs to a topic of the same name with another id."""
        return Stop(
            StopReason.OTHER_LOG,
            f"the state in {self.holder} belongs to the topic with id {known}, and "
            f"{self.prefix}norms has the id {found} now: it was deleted"
            + (" and created again" if found.strip("0") else ""),
            "Restore the topic, with its id, from a copy of Kafka's data. If the topic that is "
            f"there now holds the same records again: {_lower(self._apply_again())}. Doing so "
            "while records are missing from it forgets what they spent",
        )

    def other_partitions(self, known: int, found: int) -> Stop:
        """Partitions were added to the topic."""
        return Stop(
            StopReason.OTHER_PARTITIONS,
            f"users were charged in {known} partitions, and {self.prefix}norms has {found} now: "
            "most users would have a second budget in another partition",
            _added_partitions(f"{self.prefix}norms", known),
        )

    def topics(self, problem: str) -> Stop:
        """Topics under which records would be lost; the problem says what to do."""
        return Stop(
            StopReason.TOPICS, problem, "Until then nothing is decided: records could be missing"
        )

    def log_ends_early(self, next_offset: int, end: int) -> Stop:
        """Records that were applied are gone."""
        return Stop(
            StopReason.LOG_ENDS_EARLY,
            f"{self._holder} continues at offset {next_offset}, beyond the end of the log, {end}: "
            "Kafka lost records that were decided",
            "Restore the log from a copy that has them (docs/operations.md). What they spent is "
            f"known to {self.holder} alone until then: deleting it there would forget it",
        )

    def log_begins_late(self, next_offset: int) -> Stop:
        """Records that were not applied are gone."""
        return Stop(
            StopReason.LOG_BEGINS_LATE,
            f"{self._holder} continues at offset {next_offset}, before the start of the log, "
            f"{self.log_start}: what lies between was deleted, and no checkpoint covers it",
            "Restore Redis from a newer copy, or the log from a copy that begins no later than "
            f"{next_offset}",
        )

    def checkpoint_damaged(self, what: str) -> Stop:
        """The state would have to be built again from a checkpoint that is not whole."""
        return Stop(
            StopReason.CHECKPOINT,
            f"Redis does not have the state, the log begins at offset {self.log_start}, and the "
            f"last checkpoint in {self.prefix}checkpoints is not whole: {what}",
            f"Start the workers again, if the topic was being written. Else restore Redis, or the "
            f"topic {self.prefix}checkpoints, from a copy",
        )

    def rebuilding(self, next_offset: int, share: float) -> Stop:
        """Nothing is wrong any more: how far it is that the state is put back."""
        return Stop(
            StopReason.REBUILDING,
            f"its state is built again from the checkpoint at offset {next_offset}: {share:.0%}",
            "It goes on by itself",
        )

    def log_rewritten(self, offset: int, what: str) -> Stop:
        """The last record that was applied is not the one in the log."""
        return Stop(
            StopReason.LOG_REWRITTEN,
            f"{what} at offset {offset}, the last one that was applied: the log was written anew",
            "Restore the log from a copy. If this log is the right one: "
            f"{_lower(self._apply_again())}. That forgets what other records spent",
        )

    def hole(self, expected: int, found: int) -> Stop:
        """Records between two others are gone."""
        return Stop(
            StopReason.HOLE,
            f"the log continues at offset {found}, and offset {expected} has to be applied next: "
            "records were deleted or compacted away",
            "Restore the log from a copy",
        )

    @property
    def _holder(self) -> str:
        return self.holder[0].upper() + self.holder[1:]

    def _apply_again(self) -> str:
        """How the state is built again from the log."""
        topic = f"{self.prefix}checkpoints"
        if self.holder != "Redis":
            return (
                f"Stop the workers, delete the topic {topic} and start them again: the log begins "
                "at offset 0, so all of it is applied"
                if self.log_start == 0
                else f"Restore the topic {topic}, or Redis, from a copy"
            )
        if self.log_start:
            return (
                "Restore Redis from a copy. The log begins at offset "
                f"{self.log_start}: without a copy the state can be built again from the last "
                "checkpoint alone. If `turnstile trim --dry-run` says that there is a whole one of "
                f"partition {self.partition}, {_lower(self._delete())}: it is built again from it. "
                "Otherwise that would forget what was spent before"
            )
        return (
            f"{self._delete()}: the log begins "
            "at offset 0, so all of it is applied again and nothing that was spent is forgotten"
        )

    def _delete(self) -> str:
        keys = " ".join(f"'{key_of(self.prefix, self.partition, name)}'" for name in KEYS)
        return f"Stop the workers, run `redis-cli -c DEL {keys}` and start them again"


def stop_at(impasse: Impasse) -> Stop:
    """The ledger cannot go on."""
    return Stop(StopReason(impasse.kind), impasse.reason, impasse.remedy)


def _added_partitions(norms: str, before: int) -> str:
    """What to do when a topic has more partitions than users were charged in."""
    return (
        "Kafka takes no partition away. Create the topics with "
        f"{before} partition{'s' if before > 1 else ''} under another prefix, copy the records of "
        f"partitions 0 to {before - 1} of {norms} there, each in its order, and let workers and "
        "clients use that prefix: what was spent is applied again. Without these records another "
        "prefix forgets every budget that was spent"
    )


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
