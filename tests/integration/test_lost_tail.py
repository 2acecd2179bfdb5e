"""A broker loses the end of the log, and new records end with the same last record."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.local import KafkaBroker, LocalStack
from streams.store.store_port import SuspensionReason
from tests.integration.service import IMPATIENT_WORKER, Service, eventually

pytestmark = pytest.mark.fault


@pytest.fixture
def service() -> Iterator[Service]:
    with LocalStack(workers=1, partitions=2, worker_command=IMPATIENT_WORKER) as stack:
        yield Service(stack)
        stack.broker.kill()


def lose(broker: KafkaBroker, place: str, batches: int) -> None:
    """Kill the broker and delete the last batches, as a power loss does."""
    broker.kill()
    (segment,) = (broker.directory / "kafka" / "log" / place).glob("*.log")
    ends = ends_of_batches(segment)
    with segment.open("r+b") as file:
        file.truncate(ends[-1 - batches])
    broker.start()


def ends_of_batches(segment: Path) -> list[int]:
    data, ends = segment.read_bytes(), [0]
    while ends[-1] + 12 <= len(data):
        (length,) = struct.unpack_from(">i", data, ends[-1] + 8)
        if length <= 0:
            break
        ends.append(ends[-1] + 12 + length)
    return ends


def lose_and_rewrite(service: Service, partition: int) -> None:
    topic = service.config.topic("norms")
    lose(service.stack.broker, f"{topic}-{partition}", batches=3)
    later = Service(service.stack)  # the other worker's producer would detect it
    for offset, value in enumerate((b"x", b"y", b"last", b"more"), start=1):
        assert later.publish(partition, value) == offset
    later.close()


def test_a_rewritten_log_with_the_same_last_record_suspends_the_partition(
    service: Service,
) -> None:
    for partition in range(2):
        for value in (b"first", b"second", b"third", b"last"):
            service.publish(partition, value)
    service.settle()
    service.close()
    with service.paused_worker():
        lose_and_rewrite(service, 0)
    eventually(lambda: service.suspensions()[0] is SuspensionReason.LOG_REWRITTEN)
    assert not service.suspensions()[1]
    service.stack.workers[0].stop()
    lose_and_rewrite(service, 1)
    service.stack.start_worker()
    service.eventually_all(SuspensionReason.LOG_REWRITTEN)
    assert [service.kept()[partition].next for partition in range(2)] == [4, 4]
