"""A real Kafka broker: one node, KRaft, on the loopback address."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from streams.local.children import Child
from streams.local.directory import make_private, write_private
from streams.local.kafka_runtime import Progress, find_java, kafka_classpath
from streams.local.launch_errors import LocalFailure, LocalStackError
from streams.local.server_process import LOOPBACK, Server

_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of the virtual machine.

Measured on 2 cores: with the first compiler only, the broker starts in 2.1 s instead of 3.0 s and
uses 50 % to 100 % of the CPU time. Throughput with records of 400 bytes, 48 KiB and 12 MiB is the
same within the noise, because Python clients are the bottleneck. With records of 12 MiB the serial
collector needs 0.5 GB, G1 0.7 GB.
"""

_SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    # One node: no replicas, and one partition per internal topic is enough.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # A broker that sends no heartbeat for this long, as on a busy machine, loses all leaderships
    # and gets them back one by one, while workers own no partition. After kill -9 the broker can
    # register again only when this session has timed out.
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "500",
    # The log is the source of truth: a directory that is kept for months must not lose its start.
    "log.retention.hours": "-1",
    "log.retention.bytes": "-1",
}

_LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",  # for ``ready``
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
)


class KafkaBroker(Server):
    """A broker with its data under ``directory``.

    ```
    with KafkaBroker(directory) as broker:
        KafkaProducer(bootstrap_servers=broker.address)
    ```
    """

    name = "Kafka"
    port_count = 2  # clients, controller
    ready = "Kafka Server started"  # the broker is registered, and clients can create topics

    def __init__(
        self,
        directory: Path | str,
        *,
        heap: str = "512m",
        cluster: str | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        """Describe the broker; ``start()`` starts it.

        Args:
            directory: as in ``Server``.
            heap: maximum heap, as in ``-Xmx``.
            cluster: the cluster id for a new directory; a random one by default.
            progress: called with a line of text while the jars are downloaded.
            options: of ``Server``.
        """
        super().__init__(directory, **options)
        self._heap = heap
        self._cluster = cluster
        self._progress = progress

    def _launch(self, ports: tuple[int, ...]) -> None:
        properties = self._write_properties(ports)
        if not (self._data / "log" / "meta.properties").exists():  # the tool writes it last
            self._format(properties)
        self._run("kafka.Kafka", str(properties), heap=self._heap)

    def _listeners(self, ports: tuple[int, ...]) -> Mapping[str, str]:
        """Return the settings that say where the broker listens and whom it lets in."""
        client, controller = ports
        return {
            "listeners": f"PLAINTEXT://{LOOPBACK}:{client},CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{client}",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        }

    def _write_properties(self, ports: tuple[int, ...]) -> Path:
        """Write the configuration, at every start because the ports may have changed."""
        settings = {
            **_SETTINGS,
            **self._listeners(ports),
            "controller.quorum.voters": f"1@{LOOPBACK}:{ports[1]}",
            "log.dirs": str(self._data / "log"),
            **self._settings,
        }
        make_private(self._data)
        make_private(self._data / "tmp")
        path = self._data / "server.properties"
        # A properties file uses the backslash as its escape character.
        lines = [f"{key}={value}\n".replace("\\", "\\\\") for key, value in settings.items()]
        write_private(path, "".join(lines).encode())
        return path

    def _format(self, properties: Path) -> None:
        """Format the storage, once."""
        cluster = self._cluster or token_urlsafe(16)
        # With =, because the id may start with -, as an option does.
        options = (f"--cluster-id={cluster}", "-c", str(properties))
        child = self._run("kafka.tools.StorageTool", "format", *options, heap="64m")
        code = child.wait(self.start_timeout)
        if code != 0:
            reason = LocalFailure.NOT_READY if code is None else LocalFailure.EXITED
            raise LocalStackError(reason, child.explain(f"could not format {self._data} ({code})"))

    def _run(self, *arguments: str, heap: str) -> Child:
        command = [
            str(find_java()),
            f"-Xmx{heap}",
            *_JVM_OPTIONS,
            "-XX:-UsePerfData",  # no files in the system's temporary directory
            "-XX:+ExitOnOutOfMemoryError",
            # By default each thread keeps a native copy of the largest record that it sent.
            "-Djdk.nio.maxCachedBufferSize=1048576",
            f"-Djava.io.tmpdir={self._data / 'tmp'}",
            "-Djava.awt.headless=true",
            *_LOGGING,
            "-cp",
            os.pathsep.join(map(str, kafka_classpath(progress=self._progress))),
            *arguments,
        ]
        return self._spawn(command)
