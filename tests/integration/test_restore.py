"""Kafka is restored from a copy of its directories, by the procedure in docs/operate/backup.md."""

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
from streams.failures import Exit
from streams.kafka.snapshot_topic import read_snapshot
from streams.local import LocalStack
from streams.store.store_port import SuspensionReason
from tests.integration.service import IMPATIENT_WORKER, Service, end_at_once, eventually

pytestmark = pytest.mark.fault

PARTITIONS = 2
USERS = np.arange(12)
KNOWN = {"d": 3, "later": None}
"""The last step of each dataset's run, in Redis."""


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
    """Return the log.dirs of a broker."""
    return stack.broker.directory / "kafka" / "log"


def take_copy(stack: LocalStack, copy: Path) -> None:
    """Copy all files of one moment from a running broker, as a file system snapshot does."""
    os.kill(stack.broker.pid, signal.SIGSTOP)
    try:
        # Preallocated space in Kafka's files is a hole, which takes no room.
        words = ["cp", "-a", "--sparse=always", str(directories(stack)), str(copy)]
        subprocess.run(words, check=True)
    finally:
        os.kill(stack.broker.pid, signal.SIGCONT)


def restore_copy(stack: LocalStack, copy: Path) -> None:
    """Replace the broker's directories by the copy, with the workers stopped."""
    stack.workers[-1].stop()
    stack.broker.kill()
    shutil.rmtree(directories(stack))
    copy.rename(directories(stack))
    stack.broker.start()


def wait_for_snapshot(service: Service) -> None:
    """Wait until snapshots cover all decisions so far."""
    ends = {partition: kept.next for partition, kept in service.settle().items()}

    def is_there(partition: int) -> bool:
        snapshot = read_snapshot(service.config, partition, None, with_contents=False)
        return snapshot is not None and snapshot.manifest.meta.next == ends[partition]

    eventually(lambda: all(map(is_there, ends)))


def charge(service: Service, steps: int) -> None:
    """Charge further steps, each of which costs every user 0.5."""
    run = service.client.run("d", "r")
    for _ in range(steps):
        assert run.charge(USERS, np.ones(len(USERS)), noise_stddev=1.0).admitted.all()


def last_steps(service: Service) -> dict[str, int | None]:
    """Return the last step of each dataset's only run, from Redis."""
    runs = {line["dataset"]: line["step"] for line in service.command("runs", "--json").lines}
    known = service.command("dataset", "list", "--json").lines
    return {line["dataset"]: runs.get(line["dataset"]) for line in known}


def test_decisions_after_the_copy_are_lost_and_never_charged_again(
    stack: LocalStack, tmp_path: Path
) -> None:
    copy, receipt = tmp_path / "copy", tmp_path / "receipt.json"
    with closing(Service(stack)) as before:
        before.client.create_dataset("d", measure="zcdp", budget=2.5)
        charge(before, 1)
        wait_for_snapshot(before)
        charge(before, 1)
        at_copy = before.state("d")
        take_copy(stack, copy)
        charge(before, 2)
        before.client.create_dataset("later", measure="zcdp", budget=1.0)
        before.settle()
        eventually(lambda: last_steps(before) == KNOWN)  # owners report it some seconds later
        assert before.command("verify", "--receipt", str(receipt)).code == Exit.OK
    restore_copy(stack, copy)

    # Redis is ahead of the log: nothing is decided, and a remedy is shown.
    stack.start_worker()
    with closing(Service(stack)) as ahead:
        for partition in ahead.eventually_all(SuspensionReason.LOG_ENDS_EARLY):
            assert "redis-cli" not in partition.remedy, "only Redis knows what was spent"
        assert ahead.command("status").code == Exit.UNAVAILABLE
        assert last_steps(ahead) == KNOWN  # decisions that the log no longer contains
        stack.workers[-1].stop()
        with redis.Redis.from_url(stack.redis) as client:
            client.flushall()  # as after a loss of Redis
    stack.start_worker()

    # The state is that of the copy, and later decisions do not return.
    with closing(Service(stack)) as after:
        eventually(lambda: not any(after.reasons()))
        assert after.state("d") == at_copy
        eventually(lambda: last_steps(after) == {"d": 1})
        after.audit()
        assert after.command("verify").code == Exit.OK
        found = after.command("verify", "--against", str(receipt), "--json")
        assert found.code == Exit.REFUSED
        findings = [line for line in found.lines if line["type"] == "mismatch"]
        assert {finding["check"] for finding in findings} == {"receipt"}
        with pytest.raises(InvalidRequest):
            after.client.run("d", "r", released=3)
        assert after.client.run("d", "r").step == 2  # without the number of the last released step

        # Users who were charged after the copy are charged no more.
        after.client.create_dataset(
            "later", measure="zcdp", budget=1.0
        )  # which would otherwise be available again
        for dataset in ("d", "later"):
            assert after.command("dataset", "close", dataset).code == Exit.OK
            with pytest.raises(DatasetIsClosed):
                after.client.run(dataset, "r")
        after.audit()
