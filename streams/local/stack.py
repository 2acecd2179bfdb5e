"""A complete installation on this machine: one broker, one Redis and the workers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from streams.config import PREFIX
from streams.local.broker import KafkaBroker
from streams.local.directory import DataDirectory, make_private
from streams.local.kafka_runtime import Progress
from streams.local.launch_errors import LocalFailure, LocalStackError, started
from streams.local.redis_server import RedisServer
from streams.local.server_process import KAFKA_PORT, REDIS_PORT, Server
from streams.local.worker_process import Worker

WORKER_COMMAND = (sys.executable, "-m", "streams.cli", "worker")

SECURE_FOLDER = "secure"
"""The folder in a data directory for the certificates, passwords and keys of a secure stack."""


class LocalStack:
    """Broker, Redis and workers as a context manager.

    ```
    with LocalStack(workers=2, partitions=4) as stack:
        Turnstile(stack.kafka)
    ```

    Every process that it started ends with it, even if this process is killed. A broker or a Redis
    whose address is given is used and never stopped.
    """

    _is_secure: ClassVar[bool] = False

    def __init__(
        self,
        *,
        workers: int = 1,
        partitions: int = 4,
        prefix: str = PREFIX,
        kafka: str | None = None,
        redis: str | None = None,
        known_ports: bool = False,
        data: Path | str | None = None,
        worker_command: Sequence[str] = WORKER_COMMAND,
        worker_environment: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Describe the stack; ``start()`` or ``with`` starts it.

        Args:
            partitions: the number in topics that do not exist yet (the workers'
                TURNSTILE_PARTITIONS).
            prefix: the prefix of topics and Redis keys (TURNSTILE_PREFIX of the workers).
            kafka: bootstrap servers of an existing broker; by default the stack starts one.
            redis: URL of an existing Redis; by default the stack starts one.
            known_ports: let the broker and Redis have the ports 9092 and 6379 if they are free.
            data: directory to keep; by default a temporary one, removed at the end.
            worker_command: the program and arguments of a worker.
            worker_environment: further environment variables of the workers.
            progress: called with a line of text about each step, from any thread.
        """
        self.prefix = prefix
        self.partitions = partitions
        self._count = workers
        self._given_kafka = kafka
        self._given_redis = redis
        self._known_ports = known_ports
        self._data = data
        self._worker_command = tuple(worker_command)
        self._worker_environment = dict(worker_environment or {})
        self._say: Progress = progress or (lambda _: None)
        self._directory: DataDirectory | None = None
        self._broker: KafkaBroker | None = None
        self._redis: RedisServer | None = None
        self._workers: list[Worker] = []

    @property
    def kafka(self) -> str:
        """Bootstrap servers, as ``host:port``."""
        return self._given_kafka or self.broker.address

    @property
    def redis(self) -> str:
        """URL of Redis."""
        return self._given_redis or self.redis_server.url

    @property
    def broker(self) -> KafkaBroker:
        """The broker that this stack started."""
        return started(self._broker, "A broker of this stack")

    @property
    def redis_server(self) -> RedisServer:
        """The Redis that this stack started."""
        return started(self._redis, "A Redis of this stack")

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The workers, running or about to be restarted."""
        return tuple(self._workers)

    @property
    def directory(self) -> Path:
        """The directory of data and logs."""
        return started(self._directory, "The stack").path

    def start(self) -> None:
        """Start the broker, Redis and the workers; if one fails, stop all.

        Raises:
            LocalStackError: a process could not be started; the logs stay.
        """
        if self._directory is not None:
            raise LocalStackError(LocalFailure.INVALID_CALL, "The stack has been started already.")
        try:
            self._directory = DataDirectory(self._data)
            self._refuse_secure_data(self._directory.path)
            make_private(self._directory.path / "logs")
            self._start_servers(self._directory)
            for _ in range(self._count):
                self.start_worker()
        except BaseException as error:
            self._stop(keep=isinstance(error, Exception))
            raise

    def stop(self) -> None:
        """Stop the workers, then Redis and the broker; remove a temporary data directory."""
        self._stop(keep=False)

    def start_worker(self, health: str = "") -> Worker:
        """Start one more worker.

        Args:
            health: the address of its health endpoint; empty for none or that of the environment.
        """
        environment = {
            **os.environ,
            **self._worker_environment,
            "TURNSTILE_KAFKA": self.kafka,
            "TURNSTILE_REDIS": self.redis,
            "TURNSTILE_PREFIX": self.prefix,
            "TURNSTILE_PARTITIONS": str(self.partitions),
        }
        if health:
            environment["TURNSTILE_HEALTH"] = health
        index = len(self._workers)
        worker = Worker(
            index,
            self._worker_command,
            environment=environment,
            log=self.directory / "logs" / f"worker-{index}.log",
            progress=self._say,
            hold=self._hold,
        )
        self._workers.append(worker)  # before it starts, so that ``stop`` always ends it
        try:
            worker.start()
        except LocalStackError:
            self._workers.remove(worker)
            raise
        return worker

    def check(self) -> None:
        """Raise if a server has ended by itself or a worker keeps exiting.

        Raises:
            LocalStackError: with the last lines of the log.
        """
        for part in (self._broker, self._redis, *self._workers):
            if part is not None:
                part.check()

    @property
    def _hold(self) -> tuple[int, ...]:
        return () if self._directory is None else (self._directory.lock,)

    def _refuse_secure_data(self, directory: Path) -> None:
        """Refuse the data of a secure stack, which a stack without logins would expose."""
        if (directory / SECURE_FOLDER).exists() and not self._is_secure:
            raise LocalStackError(
                LocalFailure.UNUSABLE_DIRECTORY,
                f"{directory} has the data of a secure stack, which only logins can reach. Use "
                "--secure as well, or another data directory.",
            )

    def _start_servers(self, directory: DataDirectory) -> None:
        if self._given_redis is None:
            preferred = REDIS_PORT if self._known_ports else None
            self._redis = RedisServer(directory.path, preferred=preferred, hold=self._hold)
            self._start_server(self._redis)
        if self._given_kafka is None:
            self._broker = KafkaBroker(
                directory.path,
                preferred=KAFKA_PORT if self._known_ports else None,
                progress=self._say,
                hold=self._hold,
            )
            self._start_server(self._broker)

    def _start_server(self, server: Server) -> None:
        self._say(f"Starting {server.name}")
        began = time.monotonic()
        server.start()
        self._say(f"{server.name} is ready on {server.address} ({time.monotonic() - began:.1f} s)")

    def _stop(self, keep: bool) -> None:
        """Stop all processes; kill them if a signal handler raises meanwhile."""
        if self._directory is None:
            return
        servers = [server for server in (self._redis, self._broker) if server is not None]
        try:
            for worker in self._workers:  # all at once, then wait for each
                worker.terminate()
            for part in (*self._workers, *servers):
                part.stop()
        except BaseException:
            for worker in self._workers:  # so that none is restarted
                worker.terminate()
            for part in (*self._workers, *servers):
                part.kill()
            raise
        finally:
            self._workers, self._redis, self._broker = [], None, None
            logs = self._directory.path / "logs"
            with suppress(OSError):
                logs.rmdir()  # without a log, no process was started
            keep = keep and logs.exists()
            self._directory.close(keep)
            if keep and self._directory.temporary:
                self._say(f"The logs stay in {logs}")
            self._directory = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # The message of an error may point to the logs; after an interruption they are not needed.
        self._stop(keep=isinstance(error, Exception))
