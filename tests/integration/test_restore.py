"""Kafka goes back to a copy of its directories, as docs/operations.md has it done."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import redis

from streams import DatasetIsClosed, InvalidRequest
from streams.cli.output import Exit
from streams.kafka.snapshot_topic import read_snapshot
from streams.local import LocalStack
from streams.store.port import SuspensionReason
from tests.integration.command import Done, turnstile
from tests.integration.service import IMPATIENT_WORKER, Service, end_at_once, eventually

pytestmark = pytest.mark.fault

PARTITIONS = 2
USERS = np.arange(12)
KNOWN = {"d": 3, "later": None}
"""To Redis: the last step of the run of each dataset."""


@pytest.fixture
def stack() -> Iterator[LocalStack]:
    with LocalStack(
        workers=1,
        partitions=PARTITIONS,
        worker_command=IMPATIENT_WORKER,
        worker_environment={"TURNSTILE_SNAPSHOT_SECONDS": "1"},
    ) as running:
        yield running
        end_at_once(running, running.broker, running.redis_server)


def directories(stack: LocalStack) -> Path:
    """What a broker keeps: its log.dirs."""
    return stack.broker.directory / "kafka" / "log"


def take_copy(stack: LocalStack, copy: Path) -> None:
    """All files as of one moment while the broker runs, as a snapshot of a file system has them."""
    os.kill(stack.broker.pid, signal.SIGSTOP)
    try:
        # What a file of Kafka has ahead of its end is a hole, which takes no room.
        words = ["cp", "-a", "--sparse=always", str(directories(stack)), str(copy)]
        subprocess.run(words, check=True)
    finally:
        os.kill(stack.broker.pid, signal.SIGCONT)


def put_back(stack: LocalStack, copy: Path) -> None:
    """Nobody uses the service meanwhile."""
    stack.workers[-1].stop()
    stack.broker.kill()
    shutil.rmtree(directories(stack))
    copy.rename(directories(stack))
    stack.broker.start()


def wait_for_snapshot(service: Service) -> None:
    """Of all that was decided so far."""
    ends = {partition: kept.next for partition, kept in service.settle().items()}

    def is_there(partition: int) -> bool:
        snapshot = read_snapshot(service.config, partition, None, with_contents=False)
        return snapshot is not None and snapshot.manifest.next == ends[partition]

    eventually(lambda: all(map(is_there, ends)))


def charge(service: Service, steps: int) -> None:
    """Further steps, each of which costs everybody 0.5."""
    run = service.client.run("d", "r")
    for _ in range(steps):
        assert run.charge(USERS, np.ones(len(USERS)), noise_stddev=1.0).admitted.all()


def command(service: Service, *words: str) -> Done:
    where = {"TURNSTILE_KAFKA": service.kafka, "TURNSTILE_REDIS": service.redis}
    return turnstile(*words, environment=where)


def last_steps(service: Service) -> dict[str, int | None]:
    """Of each dataset, the last step of its only run, as Redis has it."""
    runs = {line["dataset"]: line["step"] for line in command(service, "runs", "--json").lines}
    known = command(service, "dataset", "list", "--json").lines
    return {line["dataset"]: runs.get(line["dataset"]) for line in known}


def test_what_was_decided_after_the_copy_is_missed_and_is_never_charged_again(
    stack: LocalStack, tmp_path: Path
) -> None:
    copy, receipt = tmp_path / "copy", tmp_path / "receipt.json"
    with closing(Service(stack)) as before:
        before.client.create_dataset("d", budget=2.5)
        charge(before, 1)
        wait_for_snapshot(before)
        charge(before, 1)
        at_copy = before.state("d")
        take_copy(stack, copy)
        charge(before, 2)
        before.client.create_dataset("later", budget=1.0)
        before.settle()
        eventually(lambda: last_steps(before) == KNOWN)  # owners say it some seconds later
        assert command(before, "verify", "--receipt", str(receipt)).code == Exit.OK
    put_back(stack, copy)

    # Redis is ahead of the log: nothing is decided, and what to do is said.
    stack.start_worker()
    with closing(Service(stack)) as ahead:
        for partition in ahead.eventually_all(SuspensionReason.LOG_ENDS_EARLY):
            assert "redis-cli" not in partition.remedy, "only Redis knows what was spent"
        assert command(ahead, "status").code == Exit.UNAVAILABLE
        assert last_steps(ahead) == KNOWN  # what the log does not say any more
        stack.workers[-1].stop()
        with redis.Redis.from_url(stack.redis) as client:
            client.flushall()  # as if it had been lost, too
    stack.start_worker()

    # The state is that of the copy, and what it has forgotten does not come by itself.
    with closing(Service(stack)) as after:
        eventually(lambda: not any(after.reasons()))
        assert after.state("d") == at_copy
        eventually(lambda: last_steps(after) == {"d": 1})
        after.audit()
        assert command(after, "verify").code == Exit.OK
        found = command(after, "verify", "--against", str(receipt), "--json")
        assert found.code == Exit.REFUSED
        findings = [line for line in found.lines if line["type"] == "mismatch"]
        assert {finding["check"] for finding in findings} == {"receipt"}
        with pytest.raises(InvalidRequest):
            after.client.run("d", "r", released=3)
        assert after.client.run("d", "r").step == 2  # by whom nobody is asked what was released

        # Whoever was charged since the copy is charged no more.
        after.client.create_dataset("later", budget=1.0)  # all of which would be there once more
        for dataset in ("d", "later"):
            assert command(after, "dataset", "close", dataset).code == Exit.OK
            with pytest.raises(DatasetIsClosed):
                after.client.run(dataset, "r")
        after.audit()
