"""The procedures of docs/operate lose nothing while trainers continue."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from streams.local import KafkaBroker, LocalStack, RedisServer
from streams.local.server_process import LOOPBACK, free_ports
from tests.chaos.trainers import (
    TrainerThread,
    check_received,
    trainers_of_every_kind,
    wait_for_decisions,
)
from tests.integration.service import IMPATIENT_WORKER, Service
from tests.servers.redis_failover import client_of, meta_of, version
from tests.waiting import eventually

pytestmark = pytest.mark.fault

PARTITIONS = 2
REPLICAS = (2, 3, 1)  # Kafka prefers the first one as the leader


@contextmanager
def training(service: Service) -> Iterator[list[TrainerThread[Any]]]:
    """Run trainers of every kind, which retry until they are answered."""
    config = replace(service.config, timeout=8.0)
    trainers = trainers_of_every_kind(config, random.randrange(10**9), 0.3)
    for trainer in trainers:
        trainer.start()
    try:
        wait_for_decisions(trainers)
        yield trainers
    finally:
        stop(trainers)


def stop(trainers: list[TrainerThread[Any]]) -> None:
    for trainer in trainers:
        trainer.stop(60.0)


def audit(service: Service, trainers: list[TrainerThread[Any]]) -> None:
    """Check that records and state agree with the auditor and with the received decisions."""
    wait_for_decisions(trainers)
    stop(trainers)
    assert check_received(service.audit(), trainers) > 6 * len(trainers)


def test_redis_can_move_to_a_replica_without_the_last_decisions(
    servers: LocalStack, tmp_path: Path
) -> None:
    """The replica is promoted before the workers stop, which is too early."""
    shared: dict[str, Any] = {
        "kafka": servers.kafka,
        "prefix": f"move-{random.randrange(10**9)}.",
        "partitions": PARTITIONS,
        "worker_command": IMPATIENT_WORKER,
    }
    key = meta_of(shared["prefix"], 0)
    with (
        RedisServer(tmp_path / "1") as old,
        RedisServer(tmp_path / "2") as new,
        LocalStack(**shared, redis=old.url) as before,
        closing(Service(before)) as service,
        training(service) as trainers,
    ):
        with client_of(new) as client:
            client.replicaof(LOOPBACK, old.port)
            eventually(lambda: client.info("replication")["master_link_status"] == "up")
            client.replicaof("NO", "ONE")
        wait_for_decisions(trainers)
        for worker in before.workers:
            worker.stop()
        assert version(new, key) < version(old, key)
        with (
            LocalStack(**shared, redis=new.url) as after,
            closing(Service(after)) as moved,
        ):
            audit(moved, trainers)


def broker(directory: Path, number: int, cluster: str, controller: int) -> KafkaBroker:
    """Return a broker, which is not started; only the first one has a controller."""
    (port,) = free_ports(1)
    listeners = f"PLAINTEXT://{LOOPBACK}:{port}"
    settings = {"node.id": str(number), "controller.quorum.voters": f"1@{LOOPBACK}:{controller}"}
    if number == 1:
        listeners += f",CONTROLLER://{LOOPBACK}:{controller}"
    else:
        settings["process.roles"] = "broker"
    return KafkaBroker(
        directory / str(number),
        ports=[port],
        heap="256m",
        cluster=cluster,
        settings={**settings, "listeners": listeners},
    )


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[KafkaBroker]]:
    """Yield three brokers; only the first one is running."""
    cluster, (controller,) = token_urlsafe(16), free_ports(1)
    known = [broker(tmp_path, number, cluster, controller) for number in (1, 2, 3)]
    try:
        known[0].start()
        yield known
    finally:
        for each in known:
            each.kill()


def test_after_brokers_are_added_under_load_one_can_be_lost(
    brokers: list[KafkaBroker], servers: LocalStack
) -> None:
    first, second, third = brokers
    with (
        LocalStack(
            kafka=first.address,
            redis=servers.redis,
            prefix=f"brokers-{random.randrange(10**9)}.",
            partitions=PARTITIONS,
            worker_command=IMPATIENT_WORKER,
        ) as stack,
        closing(Service(stack)) as service,
        training(service) as trainers,
        ExitStack() as opened,
    ):
        for joining in (second, third):
            joining.start()
        eventually(lambda: known_brokers(first) == len(REPLICAS))
        # A client asks one broker, once: only after all have joined.
        admin = opened.enter_context(closing(KafkaAdminClient(bootstrap_servers=first.address)))
        topics = {topic["name"]: topic["partitions"] for topic in admin.describe_topics()}
        everywhere = {
            TopicPartition(name, partition["partition_index"]): list(REPLICAS)
            for name, partitions in topics.items()
            for partition in partitions
        }
        refused = admin.alter_partition_reassignments(everywhere)
        assert not any(refused.values())
        eventually(lambda: set(copies(admin)) == {len(REPLICAS)})
        two = {"min.insync.replicas": "2"}
        kinds = [ConfigResource(ConfigResourceType.TOPIC, name, two) for name in topics]
        admin.alter_configs(kinds)
        admin.elect_leaders(0)  # preferred leaders: the second broker leads everything now
        wait_for_decisions(trainers)
        second.kill()
        audit(service, trainers)


def known_brokers(broker: KafkaBroker) -> int:
    """Return the number of brokers, as one of them reports it."""
    with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin:
        return len(admin.describe_cluster()["brokers"])


def copies(admin: KafkaAdminClient) -> list[int]:
    """Return the number of in-sync replicas of each partition of each topic."""
    found = admin.describe_topics()
    return [len(partition["isr_nodes"]) for topic in found for partition in topic["partitions"]]
