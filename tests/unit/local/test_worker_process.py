"""A supervised worker that exits says why."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from streams.config import LOG_FORMATS
from streams.local.worker_process import Worker
from tests.waiting import HANGS_AFTER

pytestmark = pytest.mark.process

_LOGS = """
import logging, sys
from streams.cli.printing import start_log
start_log("INFO", "{format}")
log = logging.getLogger("turnstile.worker")
log.critical("partition 1 is suspended")
try:
    raise OSError("MISCONF Redis cannot save")
except OSError as error:
    log.critical("the worker exits (failed): %s", error, exc_info=error)
log.info("closing")
sys.exit(75)
"""


@pytest.mark.parametrize("format_", LOG_FORMATS)
def test_exit_is_reported_with_the_last_critical_line(format_: str, tmp_path: Path) -> None:
    with exited(_LOGS.format(format=format_), tmp_path) as said:
        assert "code 75" in said
        assert "the worker exits (failed): MISCONF Redis cannot save" in said
        assert not any(word in said for word in ("suspended", "closing"))


def test_exit_without_a_critical_line_is_reported(tmp_path: Path) -> None:
    with exited("import sys; print('unrelated', flush=True); sys.exit(3)", tmp_path) as said:
        assert "code 3" in said
        assert "unrelated" not in said


@contextmanager
def exited(program: str, folder: Path) -> Iterator[str]:
    """Run a worker until its first exit; yield what is reported."""
    said: list[str] = []
    reported = Event()

    def progress(line: str) -> None:
        said.append(line)
        reported.set()

    worker = Worker(
        0,
        [sys.executable, "-c", program],
        environment=os.environ,
        log=folder / "worker.log",
        progress=progress,
    )
    worker.start()
    try:
        assert reported.wait(HANGS_AFTER)
        yield said[0]
    finally:
        worker.stop()
