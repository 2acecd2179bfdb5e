"""Three brokers: the loss of any one under load loses no decision."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from streams.config import Config
from streams.kafka.answer_topics import ANSWER_TOPICS, ensure_answer_topics
from streams.kafka.topics import MIN_IN_SYNC, TOPICS, ensure_topics, settings_of
from streams.local import KafkaBroker, LocalStack
from tests.chaos.trainers import (
    check_received,
    trainers_of_every_kind,
    wait_for_decisions,
)
from tests.integration.service import IMPATIENT_WORKER, Service, end_at_once, eventually
from tests.servers.kafka_cluster import KafkaCluster
from tests.waiting import HANGS_AFTER

pytestmark = pytest.mark.fault

BROKERS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    running = KafkaCluster(tmp_path, BROKERS)
    running.start()
    yield running
    running.kill()


@pytest.fixture
def stack(cluster: KafkaCluster) -> Iterator[LocalStack]:
    with LocalStack(
        workers=2,
        partitions=3,
        kafka=cluster.address,
        prefix="cluster.",
        worker_command=IMPATIENT_WORKER,
        worker_environment={"TURNSTILE_REPLICATION": str(BROKERS)},
    ) as running:
        yield running
        end_at_once(running)


def active_controller(admin: KafkaAdminClient) -> int:
    """Return the broker that is the active controller."""
    (log,) = admin.describe_metadata_quorum()["topics"]
    leader: int = log["partitions"][0]["leader_id"]
    return leader


def coordinator(admin: KafkaAdminClient) -> int:
    """Return the broker that coordinates the consumer group."""
    (offsets,) = admin.describe_topics(["__consumer_offsets"])
    leader: int = offsets["partitions"][0]["leader_id"]
    return leader


def lose(
    cluster: KafkaCluster, service: Service, role: Callable[[KafkaAdminClient], int]
) -> KafkaBroker:
    """Kill the broker that has a role; it also leads or replicates parts of the log."""
    with closing(service.admin()) as admin:
        broker = cluster.brokers[role(admin) - 1]  # their ids are 1, 2, 3
    broker.kill()
    return broker


def test_every_topic_needs_two_brokers_to_acknowledge_a_record(cluster: KafkaCluster) -> None:
    config = Config(kafka=cluster.address, prefix="acknowledged.", replication=BROKERS)
    ensure_topics(config)
    ensure_answer_topics(config)
    with closing(KafkaAdminClient(bootstrap_servers=cluster.address)) as admin:
        topics = [config.topic(name) for name in (*TOPICS, *ANSWER_TOPICS)]
        found = settings_of(admin, dict.fromkeys(topics, (MIN_IN_SYNC,)))
    assert found == {topic: {MIN_IN_SYNC: "2"} for topic in topics}


def test_a_broker_killed_under_load_loses_no_decision(
    stack: LocalStack, cluster: KafkaCluster
) -> None:
    service = Service(stack)
    trainers = trainers_of_every_kind(
        replace(service.config, timeout=8.0), random.randrange(10**9), 0.5
    )
    for trainer in trainers:
        trainer.start()
    try:
        wait_for_decisions(trainers)
        lost = lose(cluster, service, active_controller)
        wait_for_decisions(trainers)  # by the remaining brokers
        lost.start()
        with closing(service.admin()) as admin:
            eventually(lambda: replicas_are_in_sync(service, admin))
        wait_for_decisions(trainers)
        lose(cluster, service, coordinator)
        wait_for_decisions(trainers)
    finally:
        for trainer in trainers:
            trainer.stop(HANGS_AFTER)
        service.close()
    with closing(Service(stack)) as audited:
        assert check_received(audited.audit(), trainers) > 2 * BROKERS * len(trainers)


def replicas_are_in_sync(service: Service, admin: KafkaAdminClient) -> bool:
    """Return whether every record of the log is on three brokers again."""
    (norms,) = admin.describe_topics([service.config.topic("norms")])
    return all(
        len(partition["isr_nodes"]) == len(partition["replica_nodes"]) == BROKERS
        for partition in norms["partitions"]
    )
