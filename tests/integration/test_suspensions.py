"""Reasons to suspend a partition: another log, another P, settings that lose records, lost state.

The reason is stored and shown with a remedy. The remedy works, and no spending is lost.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import redis
from kafka import TopicPartition

from streams import DecisionTimeout, ServiceUnavailable
from streams.failures import Exit
from streams.kafka.topics import NORMS, SETTINGS, TOPICS
from streams.operations.status import read_overview, read_owners
from streams.store.store_port import SuspensionReason
from tests.integration.service import Service, ServiceFactory, eventually

USERS = np.arange(60)
NORMS_OF_STEP = np.full(60, 0.5)


def charge(service: Service, steps: int, users: np.ndarray = USERS) -> None:
    service.client.create_dataset("d", measure="zcdp", budget=1.0)
    run = service.client.run("d", "r")
    for _ in range(steps):
        run.charge(users, NORMS_OF_STEP, noise_stddev=2.0)


def decides_nothing(service: Service) -> None:
    """Check that a request to open a run is not answered, or not even sent."""
    no_answer = pytest.raises((DecisionTimeout, ServiceUnavailable))
    with no_answer, service.turnstile(timeout=2.0) as client:
        client.run("d", "r")


def restart(service: Service) -> None:
    """Restart the only worker gracefully, and wait until no partition is suspended."""
    service.stack.workers[-1].stop()
    service.stack.start_worker()
    eventually(lambda: not any(service.reasons()))


def follow(advice: str) -> None:
    """Run the commands that a remedy quotes."""
    commands = re.findall(r"`([^`]*kafka[^`]*)`", advice)
    assert commands
    for command in commands:
        program, *arguments = command.split()
        assert program == "python"
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def delete_advised_keys(service: Service, advice: str) -> None:
    """Delete a key as `redis-cli -c DEL` in a remedy does."""
    command = re.search(r"`redis-cli -c DEL ([^`]*)`", advice)
    assert command
    keys = re.findall(r"'([^']*)'", command[1])
    with redis.Redis.from_url(service.redis) as client:
        assert client.delete(*keys) > 0


@pytest.fixture
def service(start_service: ServiceFactory) -> Iterator[Service]:
    with start_service(workers=1, partitions=2) as started:
        yield started


# --- another P ----------------------------------------------------------------------------------


def add_partitions(service: Service, topics: tuple[str, ...]) -> None:
    with closing(service.admin()) as admin:
        admin.create_partitions({service.config.topic(topic): 4 for topic in topics})


@pytest.mark.parametrize("topics", [TOPICS, (NORMS,)], ids=["of all topics", "of norms alone"])
def test_added_partitions_suspend_a_running_service(
    service: Service, topics: tuple[str, ...]
) -> None:
    charge(service, 3)
    service.settle()
    add_partitions(service, topics)
    eventually(lambda: all(service.suspensions()[:2]))
    found = service.reasons()
    assert len(found) == 4
    assert all(found)
    assert service.command("status").code == Exit.UNAVAILABLE


# --- another log --------------------------------------------------------------------------------


def recreate_norms(service: Service) -> None:
    """Delete norms and create it again with the same settings."""
    topic = service.config.topic(NORMS)
    with closing(service.admin()) as admin:
        admin.delete_topics([topic])
        eventually(lambda: topic not in admin.list_topics())
        options = {
            "num_partitions": service.partitions,
            "replication_factor": 1,
            "configs": SETTINGS[NORMS],
        }
        admin.create_topics({topic: options}, wait_for_metadata=True)


def write_nonsense(service: Service, count: int) -> None:
    for partition in range(service.partitions):
        for _ in range(count):
            service.publish(partition, b"another log")


@pytest.mark.parametrize("longer", [True, False], ids=["longer", "shorter"])
def test_another_log_under_the_same_name_suspends_a_running_service(
    service: Service, longer: bool
) -> None:
    charge(service, 3)
    ends = {p: kept.next for p, kept in service.settle().items()}
    with service.paused_worker():  # which would notice the missing topic
        recreate_norms(service)
        if longer:
            write_nonsense(service, max(ends.values()) + 2)
    service.eventually_all(SuspensionReason.OTHER_LOG)
    assert service.command("status").code == Exit.UNAVAILABLE


def test_a_deleted_log_suspends_a_running_service(service: Service) -> None:
    charge(service, 3)
    service.settle()
    with closing(service.admin()) as admin:
        admin.delete_topics([service.config.topic(NORMS)])
    with redis.Redis.from_url(service.redis, decode_responses=True) as client:
        stored = [(service.key(partition, "suspended"), "reason") for partition in range(2)]
        deleted = [SuspensionReason.OTHER_LOG] * 2
        eventually(lambda: [client.hget(*field) for field in stored] == deleted)
    assert service.command("status").code == Exit.UNAVAILABLE


# --- settings -----------------------------------------------------------------------------------


def test_a_topic_that_would_lose_records_is_rejected_at_the_start(
    start_service: ServiceFactory,
) -> None:
    with start_service(workers=0, partitions=1) as service:
        topic = service.config.topic(NORMS)
        short = {"retention.ms": "5000", "segment.ms": "1000"}
        options = {"num_partitions": 1, "replication_factor": 1, "configs": short}
        with closing(service.admin()) as admin:
            admin.create_topics({topic: options}, wait_for_metadata=True)
        worker = service.stack.start_worker()
        eventually(lambda: worker.restarts > 0)
        (found,) = read_overview(service.config).partitions
        assert found.reason is SuspensionReason.TOPICS
        assert not any(read_owners(service.config, 1))
        assert service.command("status").code == Exit.UNAVAILABLE
        follow(found.problem)
        charge(service, 2)
        service.audit()


# --- a log that lost records --------------------------------------------------------------------


def delete_records(service: Service, partition: int, before: int) -> None:
    place = TopicPartition(service.config.topic(NORMS), partition)
    with closing(service.admin()) as admin:
        admin.delete_records({place: before})


def test_records_deleted_before_a_lagging_service_suspend_the_partition(service: Service) -> None:
    charge(service, 2)
    service.settle()
    with service.paused_worker():
        for _ in range(5):
            last = service.publish(1, b"nobody will ever see this")
        delete_records(service, 1, last + 1)
        service.publish(1, b"this comes too late")
    eventually(lambda: service.suspensions()[1] is SuspensionReason.LOG_BEGINS_LATE)


# --- lost state ---------------------------------------------------------------------------------


def test_a_foreign_redis_key_suspends_the_partition_until_it_is_deleted_as_advised(
    service: Service,
) -> None:
    charge(service, 3)
    service.settle()
    service.stack.workers[0].stop()
    with redis.Redis.from_url(service.redis) as client:
        client.delete(service.key(1, "changes"))
        client.set(service.key(1, "changes"), "what another program keeps")
    service.stack.start_worker()
    eventually(lambda: service.suspensions()[1] is SuspensionReason.DAMAGED)
    advice = read_overview(service.config).partitions[1].remedy
    service.stack.workers[1].stop()
    delete_advised_keys(service, advice)
    service.stack.start_worker()
    charge(service, 5)
    service.audit()


# --- another layout -----------------------------------------------------------------------------


def set_layout(service: Service, layout: int) -> None:
    """Mark the state in Redis as written by another release."""
    with redis.Redis.from_url(service.redis) as client:
        for partition in range(service.partitions):
            key = service.key(partition, "meta")
            client.hset(key, mapping={"layout": layout, "meta_digest": "of other fields"})


def test_state_of_another_layout_is_rejected_and_rebuilt_as_advised(service: Service) -> None:
    charge(service, 4)
    service.settle()
    service.stack.workers[0].stop()
    set_layout(service, 1)
    service.stack.start_worker()
    found = service.eventually_all(SuspensionReason.OTHER_LAYOUT)
    decides_nothing(service)
    for partition in found:
        delete_advised_keys(service, partition.remedy)
    restart(service)
    charge(service, 8)
    service.audit()
    spent = service.state("d")
    assert all(units == spent[0][0] for units, *_ in spent.values())
