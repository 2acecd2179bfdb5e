"""The real broker and the real Redis: data, ports, restarts, errors."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from streams.local import KafkaBroker, LocalFailure, LocalStack, LocalStackError, RedisServer
from streams.local import directory as directory_module
from streams.local.server_process import free_ports
from tests.integration.local.conftest import is_gone
from tests.waiting import HANGS_AFTER


def create_topic(address: str, name: str, **settings: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=address)
    topic = NewTopic(name, num_partitions=1, replication_factor=1, topic_configs=settings)
    admin.create_topics([topic])
    admin.close()


def produce(address: str, topic: str, *values: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=address, max_request_size=16 << 20, acks="all")
    for value in values:
        producer.send(topic, value, partition=0).get(timeout=HANGS_AFTER)
    producer.close()


def consume(address: str, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=address, max_partition_fetch_bytes=16 << 20)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    values: list[bytes] = []
    deadline = time.monotonic() + HANGS_AFTER
    while len(values) < count and time.monotonic() < deadline:
        for records in consumer.poll(200).values():
            values += [record.value for record in records]
    consumer.close()
    return values


def test_a_topic_may_take_records_of_12_mib(stack: LocalStack) -> None:
    """As the journal of answerers does; by default brokers take 1 MiB."""
    large = bytes(range(256)) * (12 * 1024 * 1024 // 256)
    create_topic(stack.kafka, "round-trip", **{"max.message.bytes": str(16 << 20)})
    produce(stack.kafka, "round-trip", b"small", large)
    assert consume(stack.kafka, "round-trip", 2) == [b"small", large]


@pytest.mark.fault
def test_a_broker_that_is_killed_and_restarted_has_its_data_and_its_port(stack: LocalStack) -> None:
    """A stopped Redis keeps its data, too: see the test that restarts it on another port."""
    topic, address, pid = "restarted", stack.kafka, stack.broker.pid
    create_topic(address, topic)
    produce(address, topic, b"before")
    stack.broker.kill()
    stack.broker.start()
    assert is_gone(pid)
    assert stack.kafka == address
    produce(address, topic, b"after")
    assert consume(address, topic, 2) == [b"before", b"after"]


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_restarted_redis_has_its_data_and_its_port(stack: LocalStack, kill: bool) -> None:
    url, pid = stack.redis, stack.redis_server.pid
    with redis.Redis.from_url(url) as client:
        # The kernel has the data before the reply: only a machine crash could lose it.
        client.set(f"restart-{kill}", "kept")
    stack.redis_server.kill() if kill else stack.redis_server.stop()
    stack.redis_server.start()
    assert is_gone(pid)
    assert stack.redis == url
    with redis.Redis.from_url(url) as client:
        assert client.get(f"restart-{kill}") == b"kept"


def test_redis_has_the_settings_that_the_protocol_requires(stack: LocalStack) -> None:
    with redis.Redis.from_url(stack.redis) as client:
        for name, value in {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "save": "",
        }.items():
            assert client.config_get(name) == {name: value}


@pytest.mark.fault
def test_a_broker_with_a_kept_directory_restarts_on_another_port(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path) as first:
        old = first.port
        create_topic(first.address, "kept")
        produce(first.address, "kept", b"value")
    (other,) = free_ports(1)
    with KafkaBroker(tmp_path, ports=[other]) as second:
        assert second.port == other != old
        # The client connects to the advertised address, which is the new one.
        assert consume(second.address, "kept", 1) == [b"value"]


def test_a_broker_that_cannot_start_quotes_its_log(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path, settings={"num.io.threads": "none"})
    with pytest.raises(LocalStackError) as caught:
        broker.start()
    assert caught.value.reason is LocalFailure.EXITED
    assert "num.io.threads" in str(caught.value)
    assert str(broker.log) in str(caught.value)
    assert not broker.running


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "one") as first:
        second = RedisServer(tmp_path / "two", ports=[first.port])
        with pytest.raises(LocalStackError) as caught:
            second.start()
        assert caught.value.reason is LocalFailure.PORT_IN_USE
        assert str(first.port) in str(caught.value)
        assert first.running


def test_two_stacks_never_share_a_data_directory(
    stack: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "_WAIT", 0.1)
    with LocalStack(workers=0, kafka=stack.kafka, data=tmp_path):
        other = LocalStack(workers=0, kafka=stack.kafka, data=tmp_path)
        with pytest.raises(LocalStackError) as caught:
            other.start()
        assert caught.value.reason is LocalFailure.DIRECTORY_IN_USE
        assert str(tmp_path) in str(caught.value)
