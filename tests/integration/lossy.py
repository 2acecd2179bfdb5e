"""A service whose workers write snapshots continuously, so that its Redis can be lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import redis

from streams.kafka.snapshot_topic import read_snapshot
from tests.integration.command import Done
from tests.integration.service import Service, eventually

USERS = np.arange(40)
NORMS = np.full(40, 0.5)

WORKER = """
import os, pathlib, signal, sys
from streams.cli.main import main
from streams.worker import heartbeat, ownership, snapshot_writer
from streams.kafka.snapshot_producer import KafkaSnapshotTopic
heartbeat.BEAT_EVERY = ownership.BEAT_EVERY = 0.5
snapshot_writer.TIME_SHARE = 1.0
snapshot_writer.SEND_BYTES = 1
real, flag = KafkaSnapshotTopic.send, pathlib.Path({flag!r})

async def send(self, records):
    if flag.exists() and flag.read_text() in (records[0][0].decode(), "any"):
        flag.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    await real(self, records)

KafkaSnapshotTopic.send = send
sys.exit(main(["worker"]))
"""


class Lossy:
    """A service with its own Redis, whose workers write snapshots continuously."""

    def __init__(self, service: Service, flag: Path) -> None:
        self.service = service
        self.flag = flag
        service.client.create_dataset("d", measure="zcdp", budget=1.0)
        self._run = service.client.run("d", "r")

    def charge(self, steps: int) -> None:
        for _ in range(steps):
            self._run.charge(USERS, NORMS, noise_stddev=2.0)

    def wait_for_snapshots(self) -> list[int]:
        """Wait until snapshots cover all decisions; return the offsets where they continue."""
        reached = {p: kept.next for p, kept in self.service.settle().items()}

        def covered() -> bool:
            snapshots = (
                read_snapshot(self.service.config, p, None, with_contents=False) for p in reached
            )
            return all(
                snapshot is not None and snapshot.manifest.meta.next == reached[p]
                for p, snapshot in enumerate(snapshots)
            )

        eventually(covered)
        return [reached[p] for p in range(self.service.partitions)]

    def empty_redis(self) -> None:
        with redis.Redis.from_url(self.service.redis) as client:
            client.flushall()

    def trim(self, *options: str) -> Done:
        return self.service.command("trim", "--json", *options)
