"""A whole installation on this machine: broker, Redis and workers, up together, down together."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from streams.config import PREFIX
from streams.local.broker import JVM_OPTIONS, KafkaBroker
from streams.local.cluster import REPLICAS, KafkaCluster, count_of_brokers
from streams.local.directory import DataDirectory, make_private
from streams.local.errors import LocalStackError
from streams.local.jars import Progress
from streams.local.ports import KAFKA_PORT, REDIS_PORT, claim_known_ports
from streams.local.redis_cluster import RedisCluster, count_of_redis_nodes
from streams.local.redis_server import RedisServer
from streams.local.server import Server
from streams.local.signals import signals_held
from streams.local.workers import Worker

WORKER_COMMAND = (sys.executable, "-m", "streams.cli", "worker")

SECURE_FOLDER = "secure"
"""In a data directory: certificates, passwords and keys, where nobody is let in without them."""

_Part = TypeVar("_Part", KafkaBroker, KafkaCluster, RedisServer, RedisCluster)
_Server = KafkaBroker | KafkaCluster | RedisServer | RedisCluster


class LocalStack:
    """Broker, Redis and workers as a context manager.

    ```
    with LocalStack(workers=2, partitions=4) as stack:
        Turnstile(stack.kafka)
    ```

    Everything that it started ends with it, also when this process is killed. A broker or a Redis
    whose address is given is used and left alone.
    """

    _is_secure: ClassVar[bool] = False

    def __init__(
        self,
        *,
        workers: int = 1,
        partitions: int = 4,
        prefix: str = PREFIX,
        brokers: int = 1,
        redis_nodes: int = 1,
        kafka: str | None = None,
        redis: str | None = None,
        known_ports: bool = False,
        data: Path | str | None = None,
        worker_command: Sequence[str] = WORKER_COMMAND,
        worker_environment: Mapping[str, str] | None = None,
        heap: str = "512m",
        jvm_options: Sequence[str] = JVM_OPTIONS,
        progress: Progress | None = None,
        wait_ready: Callable[[LocalStack], None] | None = None,
    ) -> None:
        """Describe the stack; ``start()`` or ``with`` starts it.

        Args:
            workers: how many to run.
            partitions: of topics that do not exist yet (TURNSTILE_PARTITIONS of the workers).
            prefix: of topics and Redis keys (TURNSTILE_PREFIX of the workers).
            brokers: how many to run; with 3 or more, one may be lost.
            redis_nodes: how many to run; 3 and more are a Redis Cluster, in which with 6 one may
                be lost.
            kafka: bootstrap servers of an existing broker; by default one is started.
            redis: URL of an existing Redis; by default one is started.
            known_ports: let a single broker and a single Redis have the ports 9092 and 6379, if
                they are free and no other stack of this user has them.
            data: directory to keep; by default a temporary one, removed at the end.
            worker_command: the program and arguments of a worker.
            worker_environment: further variables of the workers.
            heap: largest heap of the broker, as in ``-Xmx``.
            jvm_options: further options of the broker's virtual machine.
            progress: called with a line of text about what is happening; from any thread.
            wait_ready: called at the end of ``start()``; returns when the workers are ready.
        """
        if workers < 0:
            raise LocalStackError(f"The number of workers is {workers}; it must be at least 0.")
        self.prefix = prefix
        self.partitions = partitions
        self._count = workers
        self._count_of_brokers = brokers
        self._count_of_redis_nodes = redis_nodes
        self._given_kafka = kafka
        self._given_redis = redis
        self._known_ports = known_ports
        self._ports_claim: int | None = None
        self._data = data
        self._worker_command = tuple(worker_command)
        self._worker_environment = dict(worker_environment or {})
        self._heap = heap
        self._jvm_options = tuple(jvm_options)
        self._say: Progress = progress or (lambda _: None)
        self._wait_ready = wait_ready
        self._directory: DataDirectory | None = None
        self._broker: KafkaBroker | KafkaCluster | None = None
        self._redis: RedisServer | RedisCluster | None = None
        self._workers: list[Worker] = []

    @property
    def kafka(self) -> str:
        """Bootstrap servers, as ``host:port``."""
        return self._given_kafka or self._brokers_here.address

    @property
    def redis(self) -> str:
        """URL of Redis."""
        return self._given_redis or self._redis_here.url

    @property
    def broker(self) -> KafkaBroker:
        """The broker that this stack started, if it is one."""
        return _own(self._broker if isinstance(self._broker, KafkaBroker) else None, "broker")

    @property
    def cluster(self) -> KafkaCluster:
        """The brokers that this stack started, if they are several."""
        return _own(self._broker if isinstance(self._broker, KafkaCluster) else None, "cluster")

    @property
    def redis_server(self) -> RedisServer:
        """The Redis that this stack started, if it is one."""
        return _own(self._redis if isinstance(self._redis, RedisServer) else None, "Redis")

    @property
    def redis_cluster(self) -> RedisCluster:
        """The Redis Cluster that this stack started, if it is one."""
        found = self._redis if isinstance(self._redis, RedisCluster) else None
        return _own(found, "Redis Cluster")

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The workers, running or about to be started again."""
        return tuple(self._workers)

    @property
    def directory(self) -> Path:
        """Where data and logs are."""
        if self._directory is None:
            raise LocalStackError("The stack is not running: start it first.")
        return self._directory.path

    def start(self) -> None:
        """Start the broker, Redis and the workers; when one fails, stop all.

        Raises:
            LocalStackError: something could not be started; the logs stay.
        """
        if self._directory is not None:
            raise LocalStackError("The stack has been started already.")
        try:
            with signals_held():  # one that is held is delivered here, within
                self._directory = DataDirectory(self._data)
            self._directory.acquire()
            if self._known_ports:
                self._ports_claim = claim_known_ports()
            self._refuse_other_data(self._directory.path)
            make_private(self._directory.path / "logs")
            self._start_servers(self._directory)
            for _ in range(self._count):
                self.start_worker()
            if self._wait_ready is not None:
                self._wait_ready(self)
        except BaseException as error:
            self._stop(keep_logs=isinstance(error, Exception))
            raise

    def stop(self) -> None:
        """Stop the workers, then Redis and the broker; remove the data unless it is kept."""
        self._stop(keep_logs=False)

    def start_worker(self) -> Worker:
        """Start one more worker."""
        environment = {
            **os.environ,
            **self._worker_environment,
            "TURNSTILE_KAFKA": self.kafka,
            "TURNSTILE_REDIS": self.redis,
            "TURNSTILE_PREFIX": self.prefix,
            "TURNSTILE_PARTITIONS": str(self.partitions),
            **self._replication,
        }
        index = len(self._workers)
        worker = Worker(
            index,
            self._worker_command,
            environment=environment,
            log=self.directory / "logs" / f"worker-{index}.log",
            progress=self._say,
            hold=self._hold,
        )
        self._workers.append(worker)  # first, so that ``stop`` ends it whatever comes
        try:
            worker.start()
        except LocalStackError:
            self._workers.remove(worker)
            raise
        return worker

    def settle(self) -> None:
        """Do what is left to do once workers decide: nothing here."""

    def stop_worker(self, index: int) -> None:
        """End a worker in order; it is not started again."""
        self._workers[index].stop()

    def kill_worker(self, index: int) -> None:
        """End a worker with SIGKILL; its supervisor starts it again."""
        self._workers[index].kill()

    def restart_redis(self, *, kill: bool = False) -> None:
        """Stop Redis, or kill it, and start it again on the same port and data."""
        self._restart(self._redis_here, kill)

    def restart_kafka(self, *, kill: bool = False) -> None:
        """Stop the broker, or kill it, and start it again on the same port and data."""
        self._restart(self._brokers_here, kill)

    def check(self) -> None:
        """Raise if a server has ended by itself or a worker keeps exiting.

        Raises:
            LocalStackError: with the last lines of the log.
        """
        for part in (self._broker, self._redis, *self._workers):
            if part is not None:
                part.check()

    @property
    def _brokers_here(self) -> KafkaBroker | KafkaCluster:
        return self.broker if self._count_of_brokers == 1 else self.cluster

    @property
    def _redis_here(self) -> RedisServer | RedisCluster:
        return self.redis_server if self._count_of_redis_nodes == 1 else self.redis_cluster

    @property
    def _replication(self) -> dict[str, str]:
        if self._count_of_brokers == 1:
            return {}
        return {"TURNSTILE_REPLICATION": str(min(self._count_of_brokers, REPLICAS))}

    @property
    def _hold(self) -> tuple[int, ...]:
        if self._directory is None:
            return ()
        claim = () if self._ports_claim is None else (self._ports_claim,)
        return (self._directory.lock, *claim)

    def _refuse_other_data(self, directory: Path) -> None:
        """Refuse a directory that a secure stack, or another number of servers, has its data in."""
        if (directory / SECURE_FOLDER).exists() and not self._is_secure:
            raise LocalStackError(
                f"{directory} has the data of a secure stack, which nobody reaches without login: "
                "say --secure as well, or use another data directory."
            )
        brokers, nodes = count_of_brokers(directory), count_of_redis_nodes(directory)
        for given, kept, count, what in (
            (self._given_kafka, brokers, self._count_of_brokers, ("broker", "brokers")),
            (
                self._given_redis,
                nodes,
                self._count_of_redis_nodes,
                ("node of Redis", "nodes of Redis"),
            ),
        ):
            if given is None and kept not in (0, count):
                raise LocalStackError(
                    f"{directory} has the data of {kept} {what[kept > 1]}, and {count} "
                    f"{'are' if count > 1 else 'is'} asked for: run as many, or use another data "
                    "directory."
                )

    def _start_servers(self, directory: DataDirectory) -> None:
        if self._given_redis is None:
            self._redis = self._new_redis(directory.path)
            self._announced_start(self._redis, REDIS_PORT)
        if self._given_kafka is None:
            self._broker = self._new_broker(directory.path)
            self._announced_start(self._broker, KAFKA_PORT)

    def _new_redis(self, directory: Path) -> RedisServer | RedisCluster:
        if self._count_of_redis_nodes == 1:
            return RedisServer(directory, hold=self._hold)
        return RedisCluster(directory, self._count_of_redis_nodes, hold=self._hold)

    def _new_broker(self, directory: Path) -> KafkaBroker | KafkaCluster:
        if self._count_of_brokers == 1:
            return KafkaBroker(directory, **self._broker_options)
        return KafkaCluster(directory, self._count_of_brokers, **self._broker_options)

    @property
    def _broker_options(self) -> dict[str, Any]:
        return {
            "heap": self._heap,
            "jvm_options": self._jvm_options,
            "progress": self._say,
            "hold": self._hold,
        }

    def _announced_start(self, server: _Server, known_port: int | None = None) -> None:
        self._say(f"Starting {server.name}")
        began = time.monotonic()
        if known_port is not None and self._ports_claim is not None and isinstance(server, Server):
            server.prefer(known_port)
        server.start()
        self._say(f"{server.name} is ready on {server.address} ({time.monotonic() - began:.1f} s)")

    def _restart(self, server: _Server, kill: bool) -> None:
        if kill:
            server.kill()
        else:
            server.stop()
        self._announced_start(server)

    def _stop(self, keep_logs: bool) -> None:
        """Stop what was started. A signal on the way makes it faster and changes nothing else."""
        if self._directory is None:
            return
        with signals_held(self._hasten):
            for worker in self._workers:  # all at once, then wait for each
                worker.terminate()
            for worker in self._workers:
                worker.stop()
            for server in (self._redis, self._broker):
                if server is not None:
                    server.stop()
            self._workers, self._redis, self._broker = [], None, None
            if self._ports_claim is not None:
                os.close(self._ports_claim)
                self._ports_claim = None
            self._directory.close(keep_logs)
            if keep_logs and self._directory.temporary:
                self._say(f"The logs stay in {self._directory.path / 'logs'}")
            self._directory = None

    def _hasten(self) -> None:
        for part in (*self._workers, self._redis, self._broker):
            if part is not None:
                part.hasten()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # An error may point to the logs; who was interrupted looks for nothing.
        self._stop(keep_logs=isinstance(error, Exception))


def _own(part: _Part | None, name: str) -> _Part:
    if part is None:
        raise LocalStackError(f"This stack has no {name} that it started itself.")
    return part
