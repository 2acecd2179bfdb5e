"""After the procedure in docs/operate/erasure.md no byte on disk contains the user's id."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from streams.failures import Exit
from streams.kafka.topics import HALTS, NORMS, ODOMETER, REJECTS, SNAPSHOTS, Topics
from streams.ledger.erasure import ErasureKeys
from streams.local import KafkaBroker, LocalStack, RedisServer
from tests.integration.service import Service
from tests.waiting import eventually

pytestmark = pytest.mark.fault

PARTITIONS = 2
KEY = "a-secret-of-at-least-16-bytes"
# Closing a segment, compacting it and dropping its tombstones take a second here, not a day.
BROKER = {
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "500",
}
SECOND = "1000"
WORKER = """
import sys
from streams.cli.main import main
from streams.worker import heartbeat, ownership, snapshot_writer
heartbeat.BEAT_EVERY = ownership.BEAT_EVERY = 0.5
ownership.FIRST_MARK_AFTER = ownership.MARK_EVERY = 2.0
snapshot_writer.TIME_SHARE = 1.0
sys.exit(main(["worker"]))
"""


@dataclass
class Kept:
    """A service, and the files of its servers and workers."""

    service: Service
    directory: Path

    def files_with(self, text: str) -> set[Path]:
        """Return the files that contain the text, relative to the data directory."""
        forms = _forms(text.encode())

        def has_one(path: Path) -> bool:
            content = _content(path)
            return any(form in content for form in forms)

        paths = filter(Path.is_file, self.directory.rglob("*"))
        return {path.relative_to(self.directory) for path in paths if has_one(path)}

    def places_with(self, text: str) -> set[str]:
        """Return the places that contain the text: ``redis``, ``logs``, or topics."""
        prefix = self.service.prefix
        return {
            path.parts[2].removeprefix(prefix).rpartition("-")[0]
            if path.parts[:2] == ("kafka", "log") and len(path.parts) > 2
            else path.parts[0]
            for path in self.files_with(text)
        }

    def rewrite_append_only_file(self) -> None:
        with redis.Redis.from_url(self.service.redis) as client:
            client.bgrewriteaof()
            eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"])

    def run_daily_commands(self) -> None:
        """Run the steps that docs/operate/erasure.md schedules with cron."""
        for words in (("trim",), ("dataset", "withdraw", "unused-name")):
            assert self.service.command(*words).code == Exit.OK
        self.rewrite_append_only_file()


def _forms(text: bytes) -> list[bytes]:
    """Return the text as it is, and as it looks within base64: rejects quote requests so."""
    forms = [text]
    for before, first in ((0, 0), (1, 2), (2, 3)):  # bytes before it in its group of three
        encoded = base64.b64encode(bytes(before) + text)
        forms.append(encoded[first : (before + len(text)) // 3 * 4])
    return forms


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # Kafka has just deleted a segment
        return b""


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    prefix = f"erasure-{uuid4().hex[:8]}."
    with (
        KafkaBroker(tmp_path, settings=BROKER) as broker,
        RedisServer(tmp_path, settings={"rdbcompression": "no"}) as server,
        LocalStack(
            kafka=broker.address,
            redis=server.url,
            prefix=prefix,
            partitions=PARTITIONS,
            workers=0,
            data=tmp_path / "workers",
            worker_command=(sys.executable, "-c", WORKER),
            worker_environment={
                "TURNSTILE_SNAPSHOT_SECONDS": "0.5",
                "TURNSTILE_ERASURE_KEYS": KEY,
            },
        ) as stack,
        closing(Service(stack)) as service,
    ):
        with Topics(service.config) as topics:
            topics.ensure()
        for topic in (ODOMETER, SNAPSHOTS):
            service.alter(
                topic, segment_ms=SECOND, max_compaction_lag_ms=SECOND, delete_retention_ms=SECOND
            )
        service.alter(NORMS, segment_ms=SECOND)
        service.alter(REJECTS, compression_type="producer")  # so that its bytes can be searched
        stack.start_worker()
        yield Kept(service, tmp_path)


def use(service: Service, user: str, other: str) -> None:
    """Charge a user until the budget is spent, so that decisions, HALTs and odometers contain
    the id.
    """
    service.client.create_dataset("d", measure="zcdp", budget=1.0, odometer_step=0.25)
    run = service.client.run("d", "before")
    for _ in range(4):
        decided = run.charge([user, other], [1.0, 0.5], noise_stddev=1.0)
    assert decided.halted.tolist() == [True, False]


def test_no_byte_on_disk_contains_the_id_after_the_documented_procedure(kept: Kept) -> None:
    service, user, other = kept.service, f"ada-{uuid4()}", f"bert-{uuid4()}"
    use(service, user, other)
    service.publish(
        0, {"type": "charge", "users": [user]}
    )  # the request is rejected, and the reject quotes it
    service.settle()
    eventually(
        lambda: kept.places_with(user) >= {NORMS, HALTS, ODOMETER, REJECTS, SNAPSHOTS, "redis"}
    )

    assert service.client.erase(user) == ["d"]
    run = service.client.run("d", "before")
    run.charge([other], [0.5], noise_stddev=1.0)  # the user is left out from now on
    service.settle()

    # halts and rejects: their retention, 7 and 30 days, is over.
    for topic in (HALTS, REJECTS):
        service.alter(topic, segment_ms=SECOND, retention_ms=SECOND)

    def is_gone_a_day_later() -> bool:
        kept.run_daily_commands()
        return not kept.files_with(user)

    eventually(is_gone_a_day_later)
    assert kept.places_with(other) >= {ODOMETER, SNAPSHOTS, "redis"}, "others are known"
    public = ErasureKeys()
    assert not kept.files_with(public.name(user, public.newest))
    assert not kept.files_with(KEY)
