"""The whole stack: workers restart, data are kept or deleted, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from streams.local import LocalFailure, LocalStack, LocalStackError
from streams.local.server_process import LOOPBACK, free_ports
from tests.integration.local.conftest import WORKER, is_gone
from tests.integration.service import eventually


def test_workers_receive_the_addresses_of_all_servers(stack: LocalStack, worker_log: Path) -> None:
    eventually(lambda: worker_log.read_text().count("\n") >= 1)
    received = json.loads(worker_log.read_text().splitlines()[0])
    assert received["TURNSTILE_KAFKA"] == stack.kafka
    assert received["TURNSTILE_REDIS"] == stack.redis
    assert received["TURNSTILE_PREFIX"] == "turnstile."
    assert received["TURNSTILE_PARTITIONS"] == "3"


@pytest.mark.parametrize("by", ["stack", "signal"])
def test_a_killed_worker_is_started_again(stack: LocalStack, by: str) -> None:
    worker = stack.workers[0]
    pid, restarts = worker.pid, worker.restarts
    assert pid is not None
    if by == "stack":
        stack.workers[0].kill()
    else:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: worker.restarts == restarts + 1)
    assert worker.pid != pid
    assert worker.running
    stack.check()


def test_a_stopped_worker_stays_stopped_and_another_can_be_started(stack: LocalStack) -> None:
    worker = stack.start_worker()
    pid = worker.pid
    assert pid is not None
    assert stack.workers[-1] is worker
    worker.stop()
    assert is_gone(pid)
    assert not worker.running
    assert worker.restarts == 0


def test_a_worker_that_keeps_exiting_is_reported_with_its_log(stack: LocalStack) -> None:
    said: list[str] = []
    command = [sys.executable, "-c", "import sys; sys.exit('no such module: accounting')"]
    with LocalStack(
        kafka=stack.kafka, redis=stack.redis, worker_command=command, progress=said.append
    ) as failing:
        eventually(lambda: failing.workers[0].crash_looping)
        with pytest.raises(LocalStackError) as caught:
            failing.check()
        assert caught.value.reason is LocalFailure.EXITED
        assert "no such module: accounting" in str(caught.value)
        assert "worker-0.log" in str(caught.value)
        eventually(lambda: any("worker-0.log" in line for line in said))


def test_an_existing_broker_and_redis_are_used_and_not_stopped(stack: LocalStack) -> None:
    pids = stack.broker.pid, stack.redis_server.pid
    with LocalStack(kafka=stack.kafka, redis=stack.redis, worker_command=WORKER) as guest:
        assert (guest.kafka, guest.redis) == (stack.kafka, stack.redis)
        assert guest.workers[0].running
        for own in ("broker", "redis_server"):
            with pytest.raises(LocalStackError) as caught:
                getattr(guest, own)
            assert caught.value.reason is LocalFailure.INVALID_CALL
    assert pids == (stack.broker.pid, stack.redis_server.pid)
    stack.check()
    with redis.Redis.from_url(stack.redis) as client:
        assert client.ping()


def test_a_temporary_directory_is_deleted_and_no_process_is_left(stack: LocalStack) -> None:
    guest = LocalStack(kafka=stack.kafka, worker_command=WORKER)
    with guest:
        directory = guest.directory
        pids = [guest.redis_server.pid, guest.workers[0].pid]
        assert directory.is_dir()
    assert all(is_gone(pid) for pid in pids if pid is not None)
    assert not directory.exists()
    guest.stop()  # again is fine


def test_a_given_directory_keeps_its_data(stack: LocalStack, tmp_path: Path) -> None:
    for expected in (None, b"kept"):
        with (
            LocalStack(workers=0, kafka=stack.kafka, data=tmp_path / "data") as guest,
            redis.Redis.from_url(guest.redis) as client,
        ):
            assert client.get("key") == expected
            client.set("key", "kept")
    assert (tmp_path / "data" / "logs" / "redis.log").stat().st_size > 0


@pytest.fixture
def lenient_umask() -> Iterator[None]:
    """Set a umask that lets all users read new files and folders."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_data_and_logs_are_readable_only_by_their_owner(
    tmp_path: Path, lenient_umask: None
) -> None:
    data = tmp_path / "data"
    with LocalStack(workers=1, data=data, worker_command=WORKER) as guest:
        eventually((guest.directory / "logs" / "worker-0.log").read_text)
    found = {path: path.stat().st_mode & 0o777 for path in (data, *data.rglob("*"))}
    assert {path for path in found if path.parent == data and path.is_dir()} == {
        data / name for name in ("kafka", "redis", "logs")
    }
    open_to_others = {path for path, mode in found.items() if mode & 0o077}
    assert not open_to_others


def test_leftovers_of_a_killed_stack_are_removed_and_those_of_a_running_one_are_not(
    stack: LocalStack, tmp_path: Path
) -> None:
    left = tmp_path / "dp-turnstile-left"
    left.mkdir()
    (left / ".lock").touch()
    with LocalStack(workers=0, kafka=stack.kafka) as running:
        for lock in (left / ".lock", running.directory / ".lock"):
            os.utime(lock, (0, 0))
        with LocalStack(workers=0, kafka=stack.kafka, redis=stack.redis):
            assert not left.exists()
            assert running.directory.exists()


def test_when_the_last_part_fails_all_others_are_stopped(stack: LocalStack) -> None:
    pids: list[int] = []
    logs: list[Path] = []

    def note(line: str) -> None:
        if "ready" in line:
            pids.append(guest.redis_server.pid)
            logs.append(guest.redis_server.log)

    guest = LocalStack(kafka=stack.kafka, worker_command=["no-such-program"], progress=note)
    with pytest.raises(LocalStackError) as caught:
        guest.start()
    assert caught.value.reason is LocalFailure.NOT_STARTED
    assert is_gone(pids[0])
    assert logs[0].exists()  # the message points to it


def test_a_dead_server_is_reported(stack: LocalStack) -> None:
    with LocalStack(workers=0, kafka=stack.kafka) as guest:
        guest.check()
        os.kill(guest.redis_server.pid, signal.SIGKILL)
        eventually(lambda: not guest.redis_server.running)
        with pytest.raises(LocalStackError) as caught:
            guest.check()
        assert caught.value.reason is LocalFailure.EXITED
        assert guest.redis_server.name in str(caught.value)
        assert str(128 + signal.SIGKILL) in str(caught.value)
        guest.redis_server.start()
        guest.check()


def test_a_given_directory_keeps_its_ports_while_they_are_free(
    stack: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(**options: Any) -> LocalStack:
        return LocalStack(workers=0, kafka=stack.kafka, data=tmp_path / "data", **options)

    with again() as first:
        port = first.redis_server.port
    with again() as second:
        assert second.redis_server.port == port
    with socket.create_server((LOOPBACK, port)), again() as third:
        other = third.redis_server.port
        assert other != port
    (tmp_path / "data" / "redis.ports").write_text("nonsense")
    with again() as fourth:
        assert fourth.redis_server.running
    (known,) = free_ports(1)
    for module in ("stack", "server_process"):
        monkeypatch.setattr(f"streams.local.{module}.REDIS_PORT", known)
    with again(known_ports=True) as fifth:
        assert fifth.redis_server.port == known
    with again() as sixth:
        assert sixth.redis_server.port != known
