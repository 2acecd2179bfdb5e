"""Redis returns to an earlier state with the same next offset."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from streams.local import RedisServer
from tests.integration.service import Service, ServiceFactory, eventually

USERS = np.arange(40)
NORMS = np.full(40, 0.5)

COMPACTS_ON_DEMAND = """
import pathlib, sys
from streams.cli.main import main
from streams.worker.merge import Merger
Merger.is_due = lambda self: pathlib.Path({flag!r}).exists()
sys.exit(main(["worker"]))
"""


class Rollback:
    """A service whose Redis is copied and restored from the copy."""

    def __init__(self, service: Service, directory: Path, flag: Path) -> None:
        self.service = service
        self._server = service.stack.redis_server
        self._directory = directory
        self._flag = flag
        self._client = redis.Redis.from_url(service.redis)
        service.client.create_dataset(
            "d", measure="zcdp", budget=1.0, assume_independent_timing=True
        )
        self._run = service.client.run("d", "r")
        self._separated = service.client.run("d", "separated", min_separation=4)
        self._free_from = np.zeros(
            len(USERS), dtype=np.int64
        )  # the last step of each user in that run

    def charge(self, steps: int) -> None:
        """Charge steps in which all users participate, and steps that are too soon for most."""
        for _ in range(steps):
            self._run.charge(USERS, NORMS, noise_stddev=2.0)
            step, some = self._separated.step, slice(self._separated.step % 3, None)
            decided = self._separated.charge(USERS[some], NORMS[some], noise_stddev=20.0)
            assert (decided.admitted == (self._free_from[some] <= step)).all()
            self._free_from[some][decided.admitted] = step + 4
        self.service.settle()

    def merge(self) -> None:
        """Let the workers merge all deltas into pages."""
        self._flag.touch()
        eventually(
            lambda: all(kept.meta.since == kept.next for kept in self.service.settle().values())
        )
        self._flag.unlink()

    def replicate(self) -> RedisServer:
        """Start another Redis with a copy of the present data."""
        copy = RedisServer(self._directory)
        copy.start()
        with redis.Redis.from_url(copy.url) as client:
            client.replicaof("127.0.0.1", self._server.port)
            eventually(lambda: client.info("replication")["master_link_status"] == "up")
            client.replicaof("NO", "ONE")
        return copy

    def restore_replica(self, copy: RedisServer) -> None:
        """Replace the data with the copy, with all connections open."""
        self._client.replicaof("127.0.0.1", copy.port)
        eventually(lambda: self._client.info("replication")["master_link_status"] == "up")
        self._client.replicaof("NO", "ONE")
        copy.stop()

    def copy_file(self) -> Path:
        """Copy the append-only file."""
        kept = self._server.directory / "redis" / "appendonly.aof"
        return Path(shutil.copy(kept, self._directory / "older.aof"))

    def restore_file(self, older: Path) -> None:
        """Kill Redis, and restart it with the older file."""
        self._server.kill()
        shutil.copy(older, self._server.directory / "redis" / "appendonly.aof")
        self._server.start()


@pytest.fixture
def rollback(start_service: ServiceFactory, tmp_path: Path) -> Iterator[Rollback]:
    flag = tmp_path / "compact"
    command = (sys.executable, "-c", COMPACTS_ON_DEMAND.format(flag=str(flag)))
    with start_service(partitions=2, own_redis=True, worker_command=command) as service:
        yield Rollback(service, tmp_path, flag)


WAYS: dict[str, tuple[Callable[[Rollback], object], Callable[[Rollback, object], None]]] = {
    "replication": (Rollback.replicate, Rollback.restore_replica),
    "an older file": (Rollback.copy_file, Rollback.restore_file),
}


@pytest.mark.fault
@pytest.mark.parametrize(("copy", "restore"), WAYS.values(), ids=WAYS.keys())
def test_a_redis_that_loses_a_merge_and_no_commit_loses_no_charge(
    rollback: Rollback, copy: Callable[[Rollback], object], restore: Callable[..., None]
) -> None:
    rollback.charge(6)
    older = copy(rollback)
    rollback.merge()
    restore(rollback, older)
    rollback.charge(2)
    rollback.merge()
    rollback.service.stack.workers[0].kill()
    rollback.charge(6)
    rollback.service.audit()


@pytest.mark.parametrize(
    ("copy", "restore"),
    [
        WAYS["replication"],  # a smoke test, in `make test`
        pytest.param(*WAYS["an older file"], marks=pytest.mark.fault),
    ],
    ids=WAYS.keys(),
)
def test_a_redis_that_loses_commits_and_a_merge_applies_them_again(
    rollback: Rollback, copy: Callable[[Rollback], object], restore: Callable[..., None]
) -> None:
    rollback.charge(3)
    older = copy(rollback)
    rollback.charge(3)
    rollback.merge()
    restore(rollback, older)
    rollback.charge(3)
    rollback.service.audit()
