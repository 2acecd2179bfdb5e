"""After Redis is emptied and the log trimmed, snapshots restore all spending."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import redis
from kafka import TopicPartition

from streams.kafka.topics import NORMS, SNAPSHOTS
from streams.store.layout import KEYS
from streams.store.store_port import SuspensionReason
from tests.integration.lossy import NORMS as NORMS_OF_USERS
from tests.integration.lossy import USERS, WORKER, Lossy
from tests.integration.service import Service, ServiceFactory, eventually

pytestmark = pytest.mark.fault

PARTITIONS = 2


@contextmanager
def lossy(start_service: ServiceFactory, flag: Path) -> Iterator[Lossy]:
    with start_service(
        partitions=PARTITIONS,
        own_redis=True,
        worker_command=(sys.executable, "-c", WORKER.format(flag=str(flag))),
        worker_environment={"TURNSTILE_SNAPSHOT_SECONDS": "0.3"},
    ) as service:
        yield Lossy(service, flag)


@pytest.fixture(scope="module")
def running(
    start_service: ServiceFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lossy]:
    with lossy(start_service, tmp_path_factory.mktemp("flag") / "die") as started:
        yield started


def test_an_emptied_redis_is_restored_after_the_log_was_trimmed(
    running: Lossy,
) -> None:
    running.charge(6)
    reached = running.wait_for_snapshots()
    running.service.audit()  # the audit reads all of the log before it is trimmed
    dry = running.trim("--dry-run")
    assert (dry.code, [line["log_begins_at"] for line in dry.lines]) == (0, [0, 0])
    done = running.trim()
    assert [line["deleted"] for line in done.lines] == [n - 1 for n in reached]
    assert [line["deleted"] for line in done.lines] == [line["would_delete"] for line in dry.lines]
    assert all(line["log_begins_at"] == n - 1 for line, n in zip(done.lines, reached, strict=True))
    assert all("the last record that" in line["why_not_more"] for line in dry.lines)
    again = running.trim()
    assert [line["deleted"] for line in again.lines] == [0, 0]
    running.empty_redis()
    running.charge(6)
    running.service.audit()


def test_a_worker_killed_during_a_snapshot_leaves_the_last_one_intact(
    running: Lossy,
) -> None:
    for before in ("any", "manifest"):
        running.charge(1)
        running.flag.write_text(before)
        running.charge(1)
        eventually(lambda: not running.flag.exists())
        running.service.audit()
        running.empty_redis()
        running.charge(1)
        running.service.audit()


def delete_records(service: Service, topic: str, partition: int, before: int) -> None:
    place = TopicPartition(service.config.topic(topic), partition)
    with closing(service.admin()) as admin:
        admin.delete_records({place: before})


def empty_redis_of(service: Service, partition: int) -> None:
    with redis.Redis.from_url(service.redis) as client:
        client.delete(*(service.key(partition, name) for name in KEYS))


def test_a_lost_erasure_key_can_be_replaced_as_documented(
    start_service: ServiceFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other partition's log was trimmed, and its snapshot remains."""
    monkeypatch.setenv("TURNSTILE_ERASURE_KEYS", "the-key-that-is-lost")
    with lossy(start_service, tmp_path / "die") as running:
        service = running.service
        running.charge(3)
        (user,) = service.users(1, partition=0)
        assert service.client.erase(user) == ["d"]
        _, reached = running.wait_for_snapshots()
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
        assert running.wait_for_snapshots()
