"""Three brokers with TLS, logins and rights; one of them may fail."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from kafka import KafkaProducer
from kafka.errors import TopicAuthorizationFailedError

from streams.config import Config
from streams.kafka.admittance import check_admittance
from streams.kafka.kafka_clients import new_admin
from streams.kafka.security import NotAdmitted, security
from streams.kafka.topics import TOPICS
from streams.local import KafkaBroker
from streams.local.server_process import LOOPBACK
from streams.sdk.client import Turnstile
from tests.integration.command import turnstile
from tests.integration.service import IMPATIENT_WORKER, end_at_once
from tests.servers.secure_cluster import SecureClusterStack
from tests.waiting import HANGS_AFTER, eventually

pytestmark = pytest.mark.fault

BROKERS = 3
USERS = list(range(12))


@pytest.fixture
def stack() -> Iterator[SecureClusterStack]:
    with SecureClusterStack(
        BROKERS,
        workers=1,
        partitions=BROKERS,  # each broker leads one
        worker_command=IMPATIENT_WORKER,
    ) as running:
        yield running
        end_at_once(running, running.cluster, running.redis_server)


def listeners(broker: KafkaBroker) -> dict[str, int]:
    """Return the ports of a broker's listeners, by name."""
    file = broker.directory / "kafka" / "server.properties"
    lines = dict(line.split("=", 1) for line in file.read_text().splitlines())
    named = (listener.partition("://") for listener in lines["listeners"].split(","))
    return {name: int(address.rpartition(":")[2]) for name, _, address in named}


def certificate(port: int, authority: str) -> bytes:
    """Return the certificate of a broker."""
    context = ssl.create_default_context(cafile=authority)
    with (
        socket.create_connection((LOOPBACK, port)) as plain,
        context.wrap_socket(plain, server_hostname=LOOPBACK) as connection,
    ):
        return connection.getpeercert(binary_form=True) or b""


def check_that_every_port_rejects_clients_without_a_login(stack: SecureClusterStack) -> None:
    trainer, admin = stack.config_of("trainer"), stack.config_of("admin")
    shown = set()
    for broker in stack.cluster.brokers:
        ports = listeners(broker)
        assert ports.keys() == {"CLIENT", "INTERNAL", "CONTROLLER"}
        for port in ports.values():
            with pytest.raises(NotAdmitted):
                check_admittance(Config(kafka=f"{LOOPBACK}:{port}"))
        known = replace(trainer, kafka=broker.address)
        check_admittance(known)
        with pytest.raises(NotAdmitted):
            check_admittance(replace(known, kafka_password="hunter2"))
        for name in ("INTERNAL", "CONTROLLER"):
            among = replace(admin, kafka=f"{LOOPBACK}:{ports[name]}")
            with pytest.raises(NotAdmitted):
                check_admittance(replace(among, kafka_certificate=""))
            shown.add(certificate(ports[name], admin.kafka_ca))
        check_admittance(replace(admin, kafka=f"{LOOPBACK}:{ports['INTERNAL']}"))
    assert len(shown) == BROKERS  # each broker has its own certificate


def leaders(config: Config, topic: str) -> dict[int, int]:
    """Return the leader of each partition."""
    with closing(new_admin(config)) as admin:
        (found,) = admin.describe_topics([config.topic(topic)])
    return {part["partition_index"]: part["leader_id"] for part in found["partitions"]}


def check_that_a_trainer_has_the_same_rights_on_every_broker(stack: SecureClusterStack) -> None:
    trainer = stack.config_of("trainer")
    for topic, is_allowed in (("norms", True), ("halts", False)):
        assert sorted(leaders(trainer, topic).values()) == [1, 2, 3]
        with closing(
            KafkaProducer(
                bootstrap_servers=trainer.kafka.split(","), acks="all", **security(trainer)
            )
        ) as producer:
            for partition in range(BROKERS):
                sent = producer.send(trainer.topic(topic), b"\xc1", partition=partition)
                if is_allowed:
                    sent.get(timeout=HANGS_AFTER)
                else:
                    with pytest.raises(TopicAuthorizationFailedError):
                        sent.get(timeout=HANGS_AFTER)


def check_that_every_record_is_on_all_of_them(stack: SecureClusterStack) -> None:
    assert stack.config_of("operator").replication == BROKERS
    examined = turnstile("doctor", "--config", str(stack.roles["operator"]), "--json").lines
    (kafka,) = (line["about"] for line in examined if line["area"] == "Kafka")
    assert kafka["brokers"] == BROKERS
    topics = [line for line in examined if line["area"] == "topics"]
    assert [line["level"] for line in topics] == ["ok"] * len(TOPICS)


def check_that_the_loss_of_one_broker_is_survived(stack: SecureClusterStack) -> None:
    trainer = replace(stack.config_of("trainer"), timeout=HANGS_AFTER)
    with Turnstile(config=trainer) as client:
        client.create_dataset("d", measure="zcdp", budget=1.2)
        run = client.run("d", "r")
        assert run.charge(USERS, np.ones(12), noise_stddev=1.0).admitted.all()
        lost = leaders(trainer, "norms")[0]
        stack.cluster.brokers[lost - 1].kill()
        assert run.charge(USERS, np.ones(12), noise_stddev=1.0).admitted.all()
        assert run.charge(USERS, np.ones(12), noise_stddev=1.0).halted.all()
        eventually(lambda: lost not in leaders(trainer, "norms").values())
    with Turnstile(config=trainer) as another:  # whose settings name the lost broker as well
        assert another.run("d", "r").step == 3


def test_three_secure_brokers_authenticate_clients_and_survive_the_loss_of_one(
    stack: SecureClusterStack,
) -> None:
    """All checks are one test, because three brokers are slow to start."""
    check_that_every_port_rejects_clients_without_a_login(stack)
    check_that_a_trainer_has_the_same_rights_on_every_broker(stack)
    check_that_every_record_is_on_all_of_them(stack)
    check_that_the_loss_of_one_broker_is_survived(stack)
