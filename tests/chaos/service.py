"""The service under test: brokers, Redis, workers, and the network between them.

workers, trainers --> proxies --> broker, Redis

A single broker and a single Redis are behind proxies, unless the service is secure. Several
brokers, and the nodes of a Redis Cluster, announce their own addresses to clients, so that clients
would bypass a proxy.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from streams.config import Config
from streams.local import KafkaBroker, LocalStack, RedisServer
from streams.local.redis_server import find_redis_server
from streams.local.secure import SecureStack
from streams.local.server_process import LOOPBACK, free_ports
from tests.chaos.clock import FILE
from tests.chaos.proxy import Proxy
from tests.servers.kafka_cluster import REPLICAS, KafkaCluster
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_failover import ClusterFailover
from tests.servers.secure_cluster import SecureClusterStack

PREFIX = "chaos."
REDIS_NODES = 6
_ROOT = Path(__file__).parents[2]
_WORKER = (sys.executable, "-m", "tests.chaos.worker")


@dataclass(frozen=True)
class Shape:
    """The servers and workers to start."""

    workers: int = 2
    partitions: int = 4
    brokers: int = 1
    has_cluster: bool = False  # a Redis Cluster instead of one Redis
    is_secure: bool = False


@dataclass
class ServiceUnderTest:
    """The processes and addresses that faults act on.

    Attributes:
        directory: contains data and logs.
        shape: the servers and workers that were started.
        brokers: one, or several.
        redises: one server, or the nodes of a Cluster.
        failover: promotes replicas of a Cluster; None without a Cluster.
        proxies: by "Kafka" and "Redis"; empty if there are none.
        stack: the workers.
        clock: the file with the error of the clock, in seconds.
        trains: the trainers' settings.
        looks: settings with the right to read all topics and Redis.
    """

    directory: Path
    shape: Shape
    brokers: Sequence[KafkaBroker]
    redises: list[RedisServer]
    failover: ClusterFailover | None
    proxies: Mapping[str, Proxy]
    stack: LocalStack
    clock: Path
    trains: Config
    looks: Config


@contextmanager
def service_under_test(directory: Path, shape: Shape) -> Iterator[ServiceUnderTest]:
    """Start the service; all processes end with the block."""
    clock = directory / "clock"
    clock.write_text("0")
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), FILE: str(clock)}
    with ExitStack() as open_:
        set_up = _secure if shape.is_secure else _open_to_all
        built = set_up(open_, directory, shape, environment)
        yield ServiceUnderTest(directory=directory, shape=shape, clock=clock, **built)


def _secure(
    open_: ExitStack, directory: Path, shape: Shape, environment: dict[str, str]
) -> dict[str, Any]:
    kind = partial(SecureClusterStack, shape.brokers) if shape.brokers > 1 else SecureStack
    stack: Any = open_.enter_context(
        kind(
            workers=shape.workers,
            partitions=shape.partitions,
            prefix=PREFIX,
            data=directory,
            worker_command=_WORKER,
            worker_environment=environment,
        )
    )
    partitions = shape.partitions
    return {
        "brokers": stack.cluster.brokers if shape.brokers > 1 else [stack.broker],
        "redises": [stack.redis_server],
        "failover": None,
        "proxies": {},
        "stack": stack,
        "trains": replace(stack.config_of("trainer"), partitions=partitions),
        "looks": replace(stack.config_of("auditor"), partitions=partitions),
    }


def _open_to_all(
    open_: ExitStack, directory: Path, shape: Shape, environment: dict[str, str]
) -> dict[str, Any]:
    proxies: dict[str, Proxy] = {}
    brokers, kafka = _brokers(open_, directory, shape.brokers, proxies)
    binary = _deaf_redis(directory)
    failover = None
    if shape.has_cluster:
        cluster = RedisCluster(directory, REDIS_NODES, binary=binary)
        open_.callback(cluster.kill)
        cluster.start()
        failover = ClusterFailover(cluster)
        redises, url = cluster.nodes, cluster.url
    else:
        redises = [open_.enter_context(RedisServer(directory, binary=binary))]
        proxies["Redis"] = _proxy(open_, free_ports(1)[0], redises[0].port)
        url = f"redis://{proxies['Redis'].address}/0"
    stack = open_.enter_context(
        LocalStack(
            workers=shape.workers,
            partitions=shape.partitions,
            prefix=PREFIX,
            kafka=kafka,
            redis=url,
            data=directory / "workers",
            worker_command=_WORKER,
            worker_environment={
                **environment,
                "TURNSTILE_REPLICATION": str(min(shape.brokers, REPLICAS)),
            },
        )
    )
    config = Config(kafka=kafka, redis=url, prefix=PREFIX, partitions=shape.partitions)
    return {
        "brokers": brokers,
        "redises": redises,
        "failover": failover,
        "proxies": proxies,
        "stack": stack,
        **dict.fromkeys(("trains", "looks"), config),
    }


def _brokers(
    open_: ExitStack, directory: Path, count: int, proxies: dict[str, Proxy]
) -> tuple[Sequence[KafkaBroker], str]:
    """Start the brokers; return them and their address for clients."""
    if count > 1:
        cluster = KafkaCluster(directory, count)
        open_.callback(cluster.kill)
        cluster.start()
        return cluster.brokers, cluster.address
    client, controller, proxied, port = free_ports(4)
    broker = open_.enter_context(
        KafkaBroker(
            directory,
            ports=[client, controller],
            settings={
                "listeners": _listeners(PLAINTEXT=client, CONTROLLER=controller, FAR=proxied),
                "advertised.listeners": _listeners(PLAINTEXT=client, FAR=port),
                "listener.security.protocol.map": (
                    "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT"
                ),
            },
        )
    )
    proxies["Kafka"] = _proxy(open_, port, proxied)
    return [broker], proxies["Kafka"].address


def _proxy(open_: ExitStack, port: int, target: int) -> Proxy:
    proxy = Proxy(port, target)
    open_.callback(proxy.close)
    return proxy


def _listeners(**ports: int) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())


def _deaf_redis(directory: Path) -> Path:
    """Return a redis-server that receives an error, not a signal, at the file size limit."""
    script = directory / "redis-server"
    script.write_text(
        f"#!/bin/sh\ntrap '' XFSZ\nexec {shlex.quote(str(find_redis_server()))} \"$@\"\n"
    )
    script.chmod(0o755)
    return script
