"""After Redis is emptied and the log trimmed, snapshots restore all spending."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
import pytest
import redis
from kafka import TopicPartition

from streams.kafka.snapshot_topic import read_snapshot
from streams.kafka.topics import NORMS, SNAPSHOTS
from streams.store.layout import KEYS
from streams.store.store_port import SuspensionReason
from tests.integration.service import Service, ServiceFactory, eventually

pytestmark = pytest.mark.fault

PARTITIONS = 2
USERS = np.arange(40)
NORMS_OF_USERS = np.full(40, 0.5)

WORKER = """
import sys
from streams.cli.main import main
from streams.worker import heartbeat, ownership, snapshot_writer
heartbeat.BEAT_EVERY = ownership.BEAT_EVERY = 0.5
snapshot_writer.TIME_SHARE = 1.0
snapshot_writer.SEND_BYTES = 1
sys.exit(main(["worker"]))
"""
"""A worker that writes snapshots continuously."""


@contextmanager
def charged(start_service: ServiceFactory, steps: int) -> Iterator[Service]:
    """Start a service with its own Redis, and charge a run."""
    with start_service(
        partitions=PARTITIONS,
        own_redis=True,
        worker_command=(sys.executable, "-c", WORKER),
        worker_environment={"TURNSTILE_SNAPSHOT_SECONDS": "0.3"},
    ) as service:
        service.client.create_dataset("d", measure="zcdp", budget=1.0)
        charge(service, steps)
        yield service


def charge(service: Service, steps: int) -> None:
    run = service.client.run("d", "r")
    for _ in range(steps):
        run.charge(USERS, NORMS_OF_USERS, noise_stddev=2.0)


def wait_for_snapshots(service: Service) -> list[int]:
    """Wait until snapshots cover all decisions; return the offsets where they continue."""
    reached = [kept.next for _, kept in sorted(service.settle().items())]

    def covered() -> list[int]:
        snapshots = (
            read_snapshot(service.config, partition, None, with_contents=False)
            for partition in range(PARTITIONS)
        )
        return [0 if snapshot is None else snapshot.manifest.meta.next for snapshot in snapshots]

    eventually(lambda: covered() == reached)
    return reached


def test_an_emptied_redis_is_restored_after_the_log_was_trimmed(
    start_service: ServiceFactory,
) -> None:
    with charged(start_service, steps=6) as service:
        reached = wait_for_snapshots(service)
        service.audit()  # the audit reads all of the log before it is trimmed
        dry = service.command("trim", "--json", "--dry-run")
        assert (dry.code, [line["log_begins_at"] for line in dry.lines]) == (0, [0, 0])
        assert [line["would_delete"] for line in dry.lines] == [n - 1 for n in reached]
        done = service.command("trim", "--json")
        assert [line["deleted"] for line in done.lines] == [n - 1 for n in reached]
        assert [line["log_begins_at"] for line in done.lines] == [n - 1 for n in reached]
        again = service.command("trim", "--json")
        assert [line["deleted"] for line in again.lines] == [0, 0]
        with redis.Redis.from_url(service.redis) as client:
            client.flushall()
        charge(service, 6)
        service.audit()


def delete_records(service: Service, topic: str, partition: int, before: int) -> None:
    place = TopicPartition(service.config.topic(topic), partition)
    with closing(service.admin()) as admin:
        admin.delete_records({place: before})


def empty_redis_of(service: Service, partition: int) -> None:
    with redis.Redis.from_url(service.redis) as client:
        client.delete(*(service.key(partition, name) for name in KEYS))


def test_a_lost_erasure_key_can_be_replaced_as_documented(
    start_service: ServiceFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other partition's log was trimmed, and its snapshot remains."""
    monkeypatch.setenv("TURNSTILE_ERASURE_KEYS", "the-key-that-is-lost")
    with charged(start_service, steps=3) as service:
        (user,) = service.users(1, partition=0)
        assert service.client.erase(user) == ["d"]
        _, reached = wait_for_snapshots(service)
        delete_records(service, NORMS, 1, reached - 1)
        service.stack.workers[0].stop()
        monkeypatch.setenv("TURNSTILE_ERASURE_KEYS", "another-key-of-theirs")
        for worker in (1, 2):
            for partition in range(PARTITIONS):
                empty_redis_of(service, partition)
            service.stack.start_worker()
            if worker == 1:  # the last snapshot has the keyed hash as well
                eventually(lambda: service.suspensions()[0] is SuspensionReason.ERASURE_KEY)
                service.stack.workers[worker].stop()
                service.alter(SNAPSHOTS, cleanup_policy="compact,delete", retention_ms="-1")
                delete_records(service, SNAPSHOTS, 0, -1)
                service.alter(SNAPSHOTS, cleanup_policy="compact")
        eventually(lambda: not any(service.reasons()))
        after = service.client.run("d", "after", take_over=True)
        decided = after.charge(USERS, NORMS_OF_USERS, noise_stddev=2.0)
        assert USERS[decided.erased].tolist() == [user]
        assert wait_for_snapshots(service)
