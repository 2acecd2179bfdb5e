"""What makes a partition stop: another log, another P, settings that lose records, lost state.

A stop is kept, shown, and says what to do; doing it works, and nothing that was spent is forgotten.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import redis
from kafka import TopicPartition

from streams import DecisionTimeout, ServiceUnavailable
from streams.cli.output import Exit
from streams.operations.status import read_owners
from streams.store.vital_signs import SuspensionReason
from streams.topics.topics import NORMS, ODOMETER, SETTINGS, TOPICS
from tests.integration.command import turnstile
from tests.integration.service import Service, ServiceFactory, eventually

USERS = np.arange(60)
NORMS_OF_STEP = np.full(60, 0.5)


def charge(service: Service, steps: int, users: np.ndarray = USERS) -> None:
    service.client.create_dataset("d", budget=1.0)
    run = service.client.run("d", "r")
    for _ in range(steps):
        run.charge(users, NORMS_OF_STEP, noise_stddev=2.0)


def decides_nothing(service: Service, where: str | None = None) -> None:
    """An attempt to open a run gets no answer, or does not even reach the log."""
    no_answer = pytest.raises((DecisionTimeout, ServiceUnavailable), match=where)
    with no_answer, service.turnstile(timeout=2.0) as client:
        client.run("d", "r")


def status_code(service: Service) -> int:
    settings = ["--kafka", service.kafka, "--redis", service.redis, "--prefix", service.prefix]
    return turnstile("status", "--json", *settings).code


def restart(service: Service) -> None:
    """End the only worker in order, and start another; wait until nothing is wrong."""
    service.stack.stop_worker(len(service.stack.workers) - 1)
    service.stack.start_worker()
    eventually(lambda: not any(service.problems()))


def follow(advice: str) -> None:
    """Run the commands that a stop quotes."""
    commands = re.findall(r"`([^`]*kafka[^`]*)`", advice)
    assert commands
    for command in commands:
        program, *arguments = command.split()
        assert program == "python"
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def delete_advised_keys(service: Service, advice: str) -> None:
    """What `redis-cli -c DEL` in a stop would do."""
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
def test_added_partitions_stop_a_service_that_runs(
    service: Service, topics: tuple[str, ...]
) -> None:
    charge(service, 3)
    service.settle()
    add_partitions(service, topics)
    found = eventually(lambda: all("stopped" in p for p in service.problems()[:2])) and (
        service.problems()
    )
    assert len(found) == 4
    assert all(found)
    assert "another prefix" not in found[0] or "forgets every budget" in found[0]
    assert status_code(service) == Exit.UNAVAILABLE


def test_added_partitions_stop_all_partitions_of_a_service_that_starts(service: Service) -> None:
    charge(service, 3)
    service.settle()
    service.stack.stop_worker(0)
    add_partitions(service, TOPICS)
    service.stack.start_worker()
    found = service.eventually_all("stopped")
    assert all("charged in 2 partitions" in problem for problem in found)
    assert all("forgets every budget" in problem for problem in found)


def test_a_log_written_for_fewer_partitions_is_never_applied_to_more(service: Service) -> None:
    """Redis was emptied too, so that only the log itself knows."""
    charge(service, 3)
    service.settle()
    service.stack.stop_worker(0)
    add_partitions(service, TOPICS)
    with redis.Redis.from_url(service.redis) as client:
        client.delete(*client.scan_iter(f"{service.prefix}*"))
    service.stack.start_worker()
    eventually(lambda: all("written for 2 partitions" in p for p in service.problems()[:2]))
    with redis.Redis.from_url(service.redis) as client:
        for partition in range(2):
            assert not client.exists(service.key(partition, "changes"))


# --- another log --------------------------------------------------------------------------------


def make_anew(service: Service) -> None:
    """Delete norms and create it again, with the settings it had."""
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


def test_another_log_under_the_same_name_stops_a_service_that_starts(service: Service) -> None:
    charge(service, 3)
    ends = {p: kept.next for p, kept in service.settle().items()}
    service.stack.stop_worker(0)
    make_anew(service)
    write_nonsense(service, max(ends.values()) + 2)
    service.stack.start_worker()
    found = service.eventually_all("stopped")
    assert all("deleted and created again" in problem for problem in found)
    assert [kept.next for kept in service.kept().values()] == list(ends.values())


@pytest.mark.parametrize("longer", [True, False], ids=["longer", "shorter"])
def test_another_log_under_the_same_name_stops_a_service_that_runs(
    service: Service, longer: bool
) -> None:
    charge(service, 3)
    ends = {p: kept.next for p, kept in service.settle().items()}
    with service.paused_worker():  # which would see that the topic is gone for a moment
        make_anew(service)
        if longer:
            write_nonsense(service, max(ends.values()) + 2)
    found = service.eventually_all("stopped")
    assert all("deleted and created again" in problem for problem in found)
    assert status_code(service) == Exit.UNAVAILABLE


def test_a_log_that_is_gone_stops_a_service_that_runs(service: Service) -> None:
    charge(service, 3)
    service.settle()
    with closing(service.admin()) as admin:
        admin.delete_topics([service.config.topic(NORMS)])
    with redis.Redis.from_url(service.redis, decode_responses=True) as client:
        stops = eventually(
            lambda: (
                all(client.hgetall(service.key(p, "stopped")) for p in range(2))
                and [client.hgetall(service.key(p, "stopped")) for p in range(2)]
            )
        )
    assert all("was deleted" in stop["problem"] for stop in stops)
    assert status_code(service) == Exit.UNAVAILABLE


def test_a_last_record_that_is_another_one_stops_the_partition(service: Service) -> None:
    charge(service, 3)
    service.settle()
    service.stack.stop_worker(0)
    meta = service.key(1, "meta")
    with redis.Redis.from_url(service.redis, decode_responses=True) as client:
        head = client.hget(meta, "head")
        client.hset(meta, "head", "00" * 32)
        service.stack.start_worker()
        eventually(lambda: "there is another record" in service.problems()[1])
        assert not service.problems()[0]
        client.hset(meta, "head", head)
    restart(service)
    charge(service, 2)
    service.audit()


# --- settings -----------------------------------------------------------------------------------


def test_a_topic_under_which_records_vanish_is_refused_at_the_start(
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
        (problem,) = service.problems()
        assert "retention.ms=5000" in problem
        assert not any(read_owners(service.config, 1))
        assert status_code(service) == Exit.UNAVAILABLE
        follow(problem)
        charge(service, 2)
        service.audit()


# The others are in tests/unit/topics/test_settings.py.
LOSING = [(NORMS, {"cleanup_policy": "compact"}), (ODOMETER, {"cleanup_policy": "delete"})]


@pytest.mark.parametrize(("topic", "settings"), LOSING)
def test_settings_under_which_records_vanish_stop_a_service_that_runs(
    service: Service, topic: str, settings: dict[str, str]
) -> None:
    charge(service, 2)
    service.settle()
    service.alter(topic, **settings)
    (setting, value), *_ = settings.items()
    found = service.eventually_all(f"stopped: topic {service.config.topic(topic)}")
    assert f"{setting.replace('_', '.')}={value}" in found[0]
    decides_nothing(service)
    follow(found[0])
    restart(service)
    charge(service, 2)
    service.audit()


# --- a log that lost records --------------------------------------------------------------------


def delete_records(service: Service, partition: int, before: int) -> None:
    place = TopicPartition(service.config.topic(NORMS), partition)
    with closing(service.admin()) as admin:
        admin.delete_records({place: before})


def test_records_deleted_before_they_were_decided_stop_the_partition(service: Service) -> None:
    charge(service, 2)
    service.settle()
    service.stack.stop_worker(0)
    for _ in range(5):
        last = service.publish(1, b"nobody will ever see this")
    delete_records(service, 1, last)
    service.stack.start_worker()
    eventually(lambda: "before the start of the log" in service.problems()[1])
    assert not service.problems()[0]
    assert status_code(service) == Exit.UNAVAILABLE


def test_records_deleted_under_a_service_that_lags_stop_the_partition(service: Service) -> None:
    charge(service, 2)
    service.settle()
    with service.paused_worker():
        for _ in range(5):
            last = service.publish(1, b"nobody will ever see this")
        delete_records(service, 1, last + 1)
        service.publish(1, b"this comes too late")
    eventually(lambda: "stopped" in service.problems()[1])
    assert "before the start of the log" in service.problems()[1]


def test_records_deleted_after_they_were_decided_lose_nothing(service: Service) -> None:
    charge(service, 3)
    kept = service.settle()
    delete_records(service, 1, kept[1].next)
    restart(service)
    charge(service, 2)
    assert not any(service.problems())


def test_a_redis_that_is_ahead_of_the_log_stops_the_partition(service: Service) -> None:
    charge(service, 3)
    service.settle()
    service.stack.stop_worker(0)
    meta = service.key(1, "meta")
    with redis.Redis.from_url(service.redis) as client:
        true_next = client.hget(meta, "next")
        client.hset(meta, "next", 1_000_000)
        service.stack.start_worker()
        eventually(lambda: "stopped" in service.problems()[1])
        assert "beyond the end" in service.problems()[1]
        assert not service.problems()[0]
        decides_nothing(service, where=r"\[1\]")
        client.hset(meta, "next", true_next)
    restart(service)
    charge(service, 1)
    service.audit()


# --- lost state ---------------------------------------------------------------------------------


def lose(name: str) -> Callable[[Any, Service, int], None]:
    return lambda client, service, partition: client.delete(service.key(partition, name))


def stop_reasons(service: Service) -> list[str | None]:
    """Why each partition is suspended, by the reason that its worker stored."""
    with redis.Redis.from_url(service.redis, decode_responses=True) as client:
        return [client.hget(service.key(p, "stopped"), "reason") for p in range(service.partitions)]


def exchange_change(client: Any, service: Service, partition: int) -> None:
    changes = service.key(partition, "changes")
    client.lset(changes, -1, client.lindex(changes, 0))


DAMAGE = {
    1: lose("changes"),
    2: lose("meta"),
    3: exchange_change,
}


def test_state_of_which_a_key_is_lost_is_built_again_without_an_operator(
    start_service: ServiceFactory,
) -> None:
    with start_service(workers=1, partitions=4) as service:
        charge(service, 3)
        service.settle()
        service.stack.stop_worker(0)
        with redis.Redis.from_url(service.redis) as client:
            for partition, damage in DAMAGE.items():
                damage(client, service, partition)
        service.stack.start_worker()
        charge(service, 5)
        service.audit()


def test_state_that_is_lost_under_a_service_that_runs_is_built_again(service: Service) -> None:
    charge(service, 3)
    service.settle()
    with redis.Redis.from_url(service.redis) as client:
        client.delete(service.key(1, "changes"))
    charge(service, 5)
    service.audit()


def test_a_key_that_no_worker_wrote_stops_the_partition_until_it_is_deleted_as_advised(
    service: Service,
) -> None:
    charge(service, 3)
    service.settle()
    service.stack.stop_worker(0)
    with redis.Redis.from_url(service.redis) as client:
        client.delete(service.key(1, "changes"))
        client.set(service.key(1, "changes"), "what another program keeps")
    service.stack.start_worker()
    eventually(lambda: stop_reasons(service)[1] == SuspensionReason.DAMAGED)
    problem = service.problems()[1]
    service.stack.stop_worker(1)
    delete_advised_keys(service, problem)
    service.stack.start_worker()
    charge(service, 5)
    service.audit()


# --- another layout -----------------------------------------------------------------------------


def set_layout(service: Service, layout: int) -> None:
    """Let the state in Redis say that another release wrote it."""
    with redis.Redis.from_url(service.redis) as client:
        for partition in range(service.partitions):
            client.hset(service.key(partition, "meta"), "layout", layout)


def test_state_of_another_layout_is_refused_and_rebuilt_as_advised(service: Service) -> None:
    charge(service, 4)
    service.settle()
    service.stack.stop_worker(0)
    set_layout(service, 1)
    service.stack.start_worker()
    found = service.eventually_all("stopped")
    assert all("(1)" in problem for problem in found)
    decides_nothing(service)
    for problem in found:
        delete_advised_keys(service, problem)
    restart(service)
    charge(service, 8)
    service.audit()
    spent = service.state("d")
    assert all(units == spent[0][0] for units, *_ in spent.values())


def test_state_of_another_layout_is_not_to_be_deleted_when_the_log_begins_later(
    service: Service,
) -> None:
    charge(service, 4)
    kept = service.settle()
    service.stack.stop_worker(0)
    set_layout(service, 1)
    for partition in range(2):
        delete_records(service, partition, kept[partition].next)
    service.stack.start_worker()
    found = service.eventually_all("stopped")
    assert not any("redis-cli" in problem for problem in found)
