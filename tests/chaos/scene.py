"""The whole service with a network that can fail: broker, Redis, workers, trainers.

workers, trainers --> proxies --> broker, Redis
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from streams.config import Config
from streams.local import KafkaBroker, LocalStack, RedisServer
from streams.local.children import Child
from streams.local.ports import LOOPBACK, free_ports
from streams.local.redis_server import find_redis_server
from streams.operations.errors import Unavailable
from streams.operations.status import read_stops
from streams.store.layout import KEYS, key_of
from tests.chaos.clock import FILE
from tests.chaos.proxy import Proxy

PREFIX = "chaos."
_ROOT = Path(__file__).parents[2]


@dataclass
class Scene:
    """What faults happen to, and what an operator does about them."""

    directory: Path
    broker: KafkaBroker
    redis: RedisServer
    to_kafka: Proxy
    to_redis: Proxy
    stack: LocalStack
    clock: Path
    trainer: Trainer
    remedies: int = 0

    def operate(self) -> None:
        """Do as the advice says where a partition stopped because its state is not whole.

        No worker runs while its keys are deleted; then all of its log is applied again.
        """
        config = Config(kafka=self.stack.kafka, redis=self.stack.redis, prefix=PREFIX)
        try:
            stops = read_stops(config, self.stack.partitions)
        except Unavailable:
            return
        damaged = [p for p, stop in enumerate(stops) if stop and "is not whole" in stop]
        if not damaged:
            return
        for worker in self.stack.workers:
            worker.stop()
        with closing(redis.Redis.from_url(self.redis.url)) as client:
            for partition in damaged:
                client.delete(*(key_of(PREFIX, partition, name) for name in KEYS))
        for worker in self.stack.workers:
            worker.start()
        self.remedies += len(damaged)


class Trainer:
    """A trainer's process, started again whenever it is gone."""

    def __init__(self, directory: Path, kafka: str, environment: dict[str, str]) -> None:
        self.released = directory / "released"
        self.killed = 0
        self._log = directory / "logs" / "trainer.log"
        self._command = [sys.executable, "-m", "tests.chaos.trainer", kafka, PREFIX]
        self._environment = environment
        self._child: Child | None = None

    def start(self) -> None:
        """Begin, or go on from what was released."""
        command = [*self._command, str(self.released)]
        self._child = Child("Trainer", command, log=self._log, environment=self._environment)

    def kill(self) -> None:
        """SIGKILL, and start it again."""
        self.stop()
        self.killed += 1
        self.start()

    def stop(self) -> None:
        """End it, as a crash would."""
        if self._child is not None:
            self._child.kill()
            self._child = None


@contextmanager
def scene(directory: Path, workers: int, partitions: int) -> Iterator[Scene]:
    """Bring all of it up; everything ends with the block."""
    wrong_by = directory / "clock"
    wrong_by.write_text("0")
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), FILE: str(wrong_by)}
    client, controller, proxied, kafka_port, redis_port = free_ports(5)
    with ExitStack() as open_:
        server = open_.enter_context(RedisServer(directory, binary=_deaf_redis(directory)))
        broker = open_.enter_context(
            KafkaBroker(
                directory,
                port=client,
                settings={
                    "listeners": _listeners(PLAINTEXT=client, CONTROLLER=controller, FAR=proxied),
                    "advertised.listeners": _listeners(PLAINTEXT=client, FAR=kafka_port),
                    "listener.security.protocol.map": (
                        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT"
                    ),
                    "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
                },
            )
        )
        to_kafka, to_redis = Proxy(kafka_port, proxied), Proxy(redis_port, server.port)
        for proxy in (to_kafka, to_redis):
            open_.callback(proxy.close)
        stack = open_.enter_context(
            LocalStack(
                workers=workers,
                partitions=partitions,
                prefix=PREFIX,
                kafka=to_kafka.address,
                redis=f"redis://{to_redis.address}/0",
                data=directory / "workers",
                worker_command=(sys.executable, "-m", "tests.chaos.worker"),
                worker_environment=environment,
            )
        )
        trainer = Trainer(directory, to_kafka.address, environment)
        open_.callback(trainer.stop)
        yield Scene(directory, broker, server, to_kafka, to_redis, stack, wrong_by, trainer)


def _listeners(**ports: int) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())


def _deaf_redis(directory: Path) -> Path:
    """A redis-server that gets an error, not a signal, when it writes beyond a limit."""
    script = directory / "redis-server"
    script.write_text(
        f"#!/bin/sh\ntrap '' XFSZ\nexec {shlex.quote(str(find_redis_server()))} \"$@\"\n"
    )
    script.chmod(0o755)
    return script
