"""The state of a partition, from what Redis and Kafka show of it."""

from __future__ import annotations

import pytest

from streams.kafka.results import TopicsSeen
from streams.operations.status import (
    SILENT_AFTER,
    STALLED_AFTER,
    PartitionState,
    PartitionStatus,
    WaitReason,
    overview_of,
)
from streams.store.store_port import Glance, Pulse, SuspensionReason, pack_report
from tests.doubles.memory_store import meta_of

TOPIC = b"t" * 16
META = meta_of(TOPIC, next="7", last="6")
PULSE = pack_report(Pulse(7, 7, 0.0))
STALLED = pack_report(Pulse(7, 9, STALLED_AFTER + 1))
NOW = 1_800_000_000


def shown(
    meta: dict[str, str],
    *,
    silent: int | None = 0,
    pulse: bytes = PULSE,
    suspended: dict[str, str] | None = None,
    log: tuple[int, int] = (0, 7),
    problem: str | None = None,
) -> PartitionStatus:
    seen = None if silent is None else NOW - silent
    glance = Glance(NOW, meta, seen, pulse, b"", suspended or {})
    (one,) = overview_of("t.", TopicsSeen(TOPIC, 1, problem), [log], [glance]).partitions
    return one


def test_partition_is_decided() -> None:
    one = shown(META)
    assert (one.state, one.reason, one.next, one.lag) == (PartitionState.DECIDING, None, 7, 0)


SUSPENDED = {"reason": "hole", "problem": "a hole", "remedy": "Restore the log"}


@pytest.mark.parametrize(
    ("reason", "one"),
    [
        (SuspensionReason.HOLE, shown(META, suspended=SUSPENDED)),
        (SuspensionReason.OTHER_LAYOUT, shown(META, suspended={"reason": "of a later release"})),
        (SuspensionReason.TOPICS, shown(META, problem="retention.ms=1")),
        (SuspensionReason.OTHER_LAYOUT, shown(meta_of(TOPIC, layout="2"))),
        (SuspensionReason.OTHER_LOG, shown(meta_of(b"u" * 16))),
        (SuspensionReason.OTHER_PARTITIONS, shown(meta_of(TOPIC, partitions=2))),
        (SuspensionReason.DAMAGED, shown({**META, "next": "seven"})),
        (SuspensionReason.DAMAGED, shown({**META, "outbox": ""})),
        (SuspensionReason.DAMAGED, shown({**META, "head": "7"})),
        (SuspensionReason.LOG_ENDS_EARLY, shown(META, log=(0, 6))),
        (SuspensionReason.LOG_BEGINS_LATE, shown(META, log=(8, 9))),
        (WaitReason.NO_STATE, shown({}, silent=None, pulse=b"")),
        (WaitReason.NO_STATE, shown({}, silent=None, pulse=b"", log=(700, 741))),  # FLUSHALL
        (WaitReason.NOT_SEEN, shown(META, silent=None)),
        (WaitReason.NOT_SEEN, shown(META, pulse=b"\xc1")),  # of another release
        (WaitReason.OWNER_SILENT, shown(META, silent=SILENT_AFTER + 1)),
        (WaitReason.STALLED, shown(META, pulse=STALLED, log=(0, 9))),
    ],
)
def test_partition_that_is_not_decided_has_a_remedy(
    reason: SuspensionReason | WaitReason, one: PartitionStatus
) -> None:
    assert one.reason is reason
    assert one.state is not PartitionState.DECIDING
    assert one.problem is not None
    assert one.remedy is not None
