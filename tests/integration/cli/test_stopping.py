"""A stopped `turnstile up` leaves no process and no folder behind."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.integration.service import eventually
from tests.waiting import HANGS_AFTER

# Outputs are buffered, as in a user's terminal.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
UP = [sys.executable, "-m", "streams.cli", "up", "--free-ports", "--json", "--partitions", "1"]


def of(folder: Path) -> list[int]:
    """Return the processes that have this folder as their TMPDIR."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if f"TMPDIR={folder}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


@contextmanager
def started(
    folder: Path, command: Sequence[str] = UP, stderr: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """A command whose temporary files are in a separate folder."""
    with subprocess.Popen(
        command,
        env=ENVIRONMENT | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    ) as process:
        # The limit for a test that waits for output.
        too_late = threading.Timer(HANGS_AFTER, process.kill)
        too_late.start()
        try:
            yield process
        finally:
            too_late.cancel()
            process.kill()


def says(process: subprocess.Popen[str], words: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    pytest.fail(f"it never said {words!r}")


MOMENTS: dict[str, Callable[[subprocess.Popen[str], Path], None]] = {
    "as its folder appears": lambda _, folder: eventually(lambda: any(folder.iterdir())),
    "as Redis starts": lambda process, _: says(process, "Starting Redis"),
    "as Kafka starts": lambda process, _: says(process, "Starting Kafka"),
    "as workers start": lambda process, _: says(process, "Starting 1 worker"),
}


def nothing_is_left(folder: Path) -> None:
    eventually(lambda: not of(folder))
    assert list(folder.glob("dp-turnstile-*")) == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_signal_at_any_moment_leaves_nothing_behind(moment: str, tmp_path: Path) -> None:
    with started(tmp_path) as process:
        MOMENTS[moment](process, tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGS_AFTER) == 0
        nothing_is_left(tmp_path)


def test_second_signal_leaves_nothing_behind(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        MOMENTS["as Kafka starts"](process, tmp_path)
        process.send_signal(signal.SIGINT)
        says(process, "stopping")
        process.send_signal(signal.SIGINT)
        assert process.wait(HANGS_AFTER) == 0
        nothing_is_left(tmp_path)


def test_closed_terminal_leaves_nothing_behind(tmp_path: Path) -> None:
    """A closed terminal also closes the output, and further signals arrive."""
    terminal, its_end = pty.openpty()
    with started(tmp_path, stderr=its_end) as process:
        os.close(its_end)
        said = b""
        while b"Starting Kafka" not in said:
            said += os.read(terminal, 1024)
        os.close(terminal)
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(number)
        assert process.wait(HANGS_AFTER) == 0
        nothing_is_left(tmp_path)


def test_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = [sys.executable, "-m", "streams.cli", "demo", "--out", str(tmp_path / "out")]
    with started(tmp_path, demo) as process:
        says(process, "Starting 2 workers")
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGS_AFTER) == 130
        nothing_is_left(tmp_path)
