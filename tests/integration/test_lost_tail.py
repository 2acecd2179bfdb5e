"""A broker loses the end of the log, and what is written then ends with the very same record."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from streams.local import KafkaBroker, LocalStack
from tests.integration.service import Service, eventually


@pytest.fixture
def service() -> Iterator[Service]:
    with LocalStack(workers=1, partitions=1) as stack:
        yield Service(stack)
        stack.broker.kill()


def lose(broker: KafkaBroker, topic: str, batches: int) -> None:
    """Kill the broker, as a machine that loses its power does, and let the last batches be gone."""
    broker.kill()
    (segment,) = (broker.directory / "kafka" / "log" / f"{topic}-0").glob("*.log")
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


def stopped(service: Service) -> AbstractContextManager[None]:
    service.stack.stop_worker(0)
    return nullcontext()


def paused(service: Service) -> AbstractContextManager[object]:
    return service.paused_worker()


@pytest.mark.parametrize("meanwhile", [stopped, paused])
def test_a_log_that_was_written_anew_with_the_same_last_record_stops_the_partition(
    service: Service, meanwhile: Callable[[Service], AbstractContextManager[object]]
) -> None:
    for value in (b"first", b"second", b"third", b"last"):
        service.publish(0, value)
    service.settle()
    service.close()  # its producer would find out
    with meanwhile(service):
        lose(service.stack.broker, service.config.topic("norms"), batches=3)
        later = Service(service.stack)
        for offset, value in enumerate((b"x", b"y", b"last", b"more"), start=1):
            assert later.publish(0, value) == offset
    if meanwhile is stopped:
        service.stack.start_worker()
    eventually(lambda: "leader epoch" in later.problems()[0])
    assert later.kept()[0].next == 4
    later.close()
