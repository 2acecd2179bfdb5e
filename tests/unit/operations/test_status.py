"""The state of a partition, and the access list of a dataset, from what Redis and Kafka show."""

from __future__ import annotations

import pytest

from streams.kafka.results import TopicsSeen
from streams.operations.status import (
    SILENT_AFTER,
    STALLED_AFTER,
    PartitionState,
    PartitionStatus,
    WaitReason,
    datasets_of,
    overview_of,
)
from streams.store.store_port import Glance, Inventory, Pulse, SuspensionReason, pack_report
from tests.doubles.memory_store import meta_of
from tests.keys import allowing
from tests.unit.ledger.signed_logs import ALLOW, SignedLog, listed

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


FEWER = allowing(mary="manage")


def seen(*logs: SignedLog):
    """The dataset d, as the owners of these partitions tell of it."""
    summaries = [Inventory(7, log.ledger.summary()) for log in logs]
    return datasets_of(Glance(0, {}, 0, b"", pack_report(each), {}) for each in summaries)["d"]


def changed(number: int = 1) -> SignedLog:
    log = listed()
    assert log.set(number, FEWER) is None
    return log


def test_status_has_the_list_in_force():
    dataset = seen(changed(), changed(2))
    assert (dataset.allow, dataset.allow_agrees) == (FEWER, True)
    assert dataset.policy.allow == ALLOW

    open_to_all = SignedLog()
    open_to_all.create()
    dataset = seen(open_to_all, open_to_all)
    assert (dataset.allow, dataset.allow_agrees) == (None, True)


def test_partial_access_change_is_shown():
    for logs in ((listed(), changed()), (changed(), listed())):
        assert not seen(*logs).allow_agrees
