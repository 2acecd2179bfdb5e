"""A real Kafka broker: one node, KRaft, on the loopback address."""

from __future__ import annotations

import base64
import os
import ssl
import struct
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from streams.local.children import Child
from streams.local.directory import make_private, write_private
from streams.local.errors import LocalStackError
from streams.local.jars import Progress, kafka_classpath
from streams.local.java import find_java
from streams.local.ports import LOOPBACK
from streams.local.server import Server, exchange

JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Defaults of the virtual machine, beside the heap.

Measured on 2 cores: with the first compiler alone the broker starts in 2.1 s instead of 3.0 s and
uses half to all of the processor time that it uses otherwise; throughput at 400 B, 48 KiB and
12 MiB a record was the same within the noise, since Python clients are the limit. The serial
collector needs 0.5 GB for 12 MiB records where G1 takes 0.7 GB. A benchmark with faster clients
should compare with ``jvm_options=()``.
"""

_MAX_RECORD = 16 * 1024 * 1024  # 12 MiB of content and what surrounds it

_SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    # One node: nothing can be replicated, and one partition of the internal topics is enough.
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
    # A broker that is silent for longer, as on a busy machine, leads nothing any more; then it
    # leads one partition after the other again, and no worker has any until it leads them all.
    # After kill -9 the controller lets the broker register again when this session is over.
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "500",
    "message.max.bytes": str(_MAX_RECORD),
    "replica.fetch.max.bytes": str(_MAX_RECORD),
    "socket.request.max.bytes": str(100 * 1024 * 1024),
    # The log is the truth: a directory that is kept for months must not lose its beginning.
    "log.retention.hours": "-1",
    "log.retention.bytes": "-1",
}

_LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
)


class KafkaBroker(Server):
    """A broker that keeps its data under ``directory``.

    ```
    with KafkaBroker(directory) as broker:
        KafkaProducer(bootstrap_servers=broker.address)
    ```
    """

    name = "Kafka"
    port_count = 2  # clients, controller
    start_timeout = 60.0

    def __init__(
        self,
        directory: Path | str,
        *,
        port: int | None = None,
        more_ports: Sequence[int] = (),
        heap: str = "512m",
        jvm_options: Sequence[str] = JVM_OPTIONS,
        settings: Mapping[str, str] | None = None,
        cluster: str | None = None,
        java: Path | None = None,
        progress: Progress | None = None,
        hold: Sequence[int] = (),
    ) -> None:
        """Describe the broker; ``start()`` starts it.

        Args:
            directory: keeps data and logs; used again, the broker has its topics again.
            port: for clients; a free one by default.
            more_ports: beside that one, if others have to know them before it starts: that of the
                controller first.
            heap: largest heap, as in ``-Xmx``.
            jvm_options: further options of the virtual machine.
            settings: broker settings on top of the defaults.
            cluster: the id of the cluster that it is made for; one of its own by default.
            java: the ``java`` to run; ``find_java()`` by default.
            progress: called with a line of text while the jars are downloaded.
            hold: descriptors that stay open until the broker has ended.
        """
        super().__init__(directory, port=port, more_ports=more_ports, hold=hold)
        self._data = self.directory / "kafka"
        self._heap = heap
        self._jvm_options = tuple(jvm_options)
        self._settings = dict(settings or {})
        self._cluster = cluster
        self._java = java
        self._progress = progress
        self._classpath: list[Path] | None = None

    def _launch(self, ports: tuple[int, ...]) -> Child:
        properties = self._write_properties(ports)
        if not self._cluster_file.exists():
            self._format(properties)
        return self._run("kafka.Kafka", str(properties), heap=self._heap)

    def _is_ready(self, child: Child, port: int) -> bool:
        return registered_cluster(port) == self._cluster_file.read_text()

    @property
    def _cluster_file(self) -> Path:
        return self._data / "cluster.id"

    def _write_properties(self, ports: tuple[int, ...]) -> Path:
        """The configuration, written at every start: the ports may be others than last time."""
        client, controller = ports
        settings = {
            **_SETTINGS,
            "listeners": f"PLAINTEXT://{LOOPBACK}:{client},CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{client}",
            "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
            "log.dirs": str(self._data / "log"),
            **self._settings,
        }
        make_private(self._data)
        make_private(self._data / "tmp")
        path = self._data / "server.properties"
        # In a properties file a backslash escapes.
        lines = [f"{key}={value}\n".replace("\\", "\\\\") for key, value in settings.items()]
        write_private(path, "".join(lines).encode())
        return path

    def _format(self, properties: Path) -> None:
        """Prepare the storage, once. Interrupted, it is done again with the same cluster id."""
        draft = self._data / "cluster.id.new"
        if not draft.exists():
            write_private(draft, (self._cluster or new_cluster_id()).encode())
        tool = ("kafka.tools.StorageTool", "format", "--ignore-formatted")
        cluster = draft.read_text()
        child = self._run(*tool, "-t", cluster, "-c", str(properties), heap="64m")
        try:
            code = child.wait(self.start_timeout)
        finally:
            child.kill()
        if code != 0:
            raise LocalStackError(child.explain(f"could not format {self._data}"))
        os.replace(draft, self._cluster_file)

    def _run(self, *arguments: str, heap: str) -> Child:
        if self._java is None:
            self._java = find_java()
        if self._classpath is None:
            self._classpath = kafka_classpath(progress=self._progress)
        command = [
            str(self._java),
            f"-Xmx{heap}",
            *self._jvm_options,
            "-XX:-UsePerfData",  # no files in the system's temporary directory
            "-XX:+ExitOnOutOfMemoryError",
            # Each thread would keep a native copy of the largest record that it ever sent.
            "-Djdk.nio.maxCachedBufferSize=1048576",
            f"-Djava.io.tmpdir={self._data / 'tmp'}",
            "-Djava.awt.headless=true",
            *_LOGGING,
            "-cp",
            os.pathsep.join(map(str, self._classpath)),
            *arguments,
        ]
        return self._spawn(command)


def registered_cluster(port: int, tls: ssl.SSLContext | None = None) -> str | None:
    """The cluster id that the broker on a port tells, once topics can be created on it.

    One Metadata request by hand: a client library would take longer to import than the answer to
    come. A broker that listens and is not registered yet knows no broker, not even itself.
    """
    # Length; then key 3 (Metadata), version 2, correlation 1, no client id; no topics.
    body = struct.pack(">hhihi", 3, 2, 1, -1, 0)
    answer = exchange(port, struct.pack(">i", len(body)) + body, tls=tls)
    if answer is None:
        return None
    try:
        with answer:
            size = struct.unpack(">i", answer.read(4))[0]
            return _cluster_of_metadata(answer.read(size))
    except (OSError, struct.error, UnicodeDecodeError):
        return None


def _cluster_of_metadata(answer: bytes) -> str | None:
    """Correlation id, array of (id, host, port, rack), cluster id (Metadata response, v2)."""

    def string(at: int) -> tuple[bytes, int]:
        (length,) = struct.unpack_from(">h", answer, at)
        end = at + 2 + max(length, 0)
        return answer[at + 2 : end], end

    (brokers,) = struct.unpack_from(">i", answer, 4)
    at = 8
    for _ in range(brokers):
        _host, at = string(at + 4)
        _rack, at = string(at + 4)
    cluster, _ = string(at)
    return cluster.decode() if brokers > 0 else None


def new_cluster_id() -> str:
    """A random Kafka UUID; not one that a command line would take for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
