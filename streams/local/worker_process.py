"""A worker process and its supervisor, which restarts it when it exits, until it is stopped.

The state machine of one worker:

            start()              exit                 after the delay
    STOPPED ------> RUNNING ------------> WAITING ------------------> RUNNING
       ^               |                     |
       +---- stop() ---+------- stop() ------+
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from streams.local.children import Child
from streams.local.kafka_runtime import Progress
from streams.local.launch_errors import LocalFailure, LocalStackError

_FIRST_DELAY = 0.1  # seconds; doubles with every quick exit
_LONGEST_DELAY = 5.0
_LONG_ENOUGH = 10.0  # seconds; a shorter run counts as a quick exit
_TRACEBACK_LINES = 1000
_LOOPING = 5  # quick exits in a row


class Worker:
    """One supervised worker process.

    A worker exits on any unexpected event, such as a restart of Redis, and relies on being
    restarted. A worker that keeps exiting is reported, and still restarted.
    """

    def __init__(
        self,
        index: int,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        progress: Progress,
        hold: Sequence[int] = (),
    ) -> None:
        """Describe worker number ``index``; ``start()`` starts it."""
        self.name = f"Worker {index}"
        self.restarts = 0
        self._command = tuple(command)
        self._environment = dict(environment)
        self._log = log
        self._progress = progress
        self._hold = tuple(hold)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._child: Child | None = None
        self._killed = False
        self._quick_exits = 0
        self._supervisor: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """The process id, or None between two processes."""
        child = self._child
        return child.pid if child is not None and child.running else None

    @property
    def running(self) -> bool:
        """Return whether the worker has a process now."""
        return self.pid is not None

    @property
    def crash_looping(self) -> bool:
        """Return whether the worker exited soon after its start several times in a row."""
        return self._quick_exits >= _LOOPING

    def start(self) -> None:
        """Start the process and its supervisor.

        Raises:
            LocalStackError: the command cannot be executed.
        """
        self._stopping.clear()
        self._quick_exits = 0
        self._child = self._spawn()
        self._supervisor = threading.Thread(
            target=self._supervise, args=(self._child,), name=self.name, daemon=True
        )
        self._supervisor.start()

    def terminate(self) -> None:
        """Send SIGTERM and restart the worker no more, without waiting."""
        with self._lock:
            self._stopping.set()
            if self._child is not None:
                self._child.terminate()

    def stop(self) -> None:
        """End the worker: SIGTERM, then SIGKILL after the grace period. It is not restarted."""
        self.terminate()
        if self._child is not None:
            self._child.stop()
        if self._supervisor is not None:
            self._supervisor.join()

    def kill(self) -> None:
        """End the process with SIGKILL, as a crash would; unless terminated, it is restarted."""
        with self._lock:
            child = self._child
            self._killed = True
        if child is not None:
            child.kill()

    def check(self) -> None:
        """Raise ``LocalStackError`` with the log's last lines if the worker is crash-looping."""
        if self.crash_looping and self._child is not None:
            raise LocalStackError(LocalFailure.EXITED, self._report(self._child))

    def _spawn(self) -> Child:
        return Child(
            self.name,
            self._command,
            log=self._log,
            environment=self._environment,
            hold=self._hold,
        )

    def _supervise(self, child: Child) -> None:
        while True:
            child.wait()
            if self._stopping.is_set():
                return
            self._count_exit(child)
            delay = min(_FIRST_DELAY * 2 ** max(self._quick_exits - 1, 0), _LONGEST_DELAY)
            if self._stopping.wait(delay):
                return
            with self._lock:  # so that stop() sees either no new child or all of it
                if self._stopping.is_set():
                    return
                try:
                    self._child = child = self._spawn()
                except (LocalStackError, OSError) as error:
                    self._progress(f"{self.name} could not be restarted: {error}")
                    continue  # the exit is counted again, and the delay grows
                self.restarts += 1

    def _count_exit(self, child: Child) -> None:
        if self._killed:
            self._killed = False
            self._quick_exits = 0
            return
        quick = time.monotonic() - child.started < _LONG_ENOUGH
        self._quick_exits = self._quick_exits + 1 if quick else 1
        if self._quick_exits == _LOOPING:
            self._progress(self._report(child))
        elif self._quick_exits < _LOOPING:
            self._progress(f"{self.name} exited with code {_ending(child)}; restarting it")

    def _report(self, child: Child) -> str:
        what = f"keeps exiting, the last time with code {_ending(child)}"
        return child.explain(f"{what}; it is restarted every {_LONGEST_DELAY:g} seconds")


def _ending(child: Child) -> str:
    """Return a worker's exit code, and the last critical line of its log, if there is one."""
    # A traceback follows the line, so the last lines of the log often lack it.
    lines = (line for line in reversed(child.log_tail(_TRACEBACK_LINES)) if "CRITICAL" in line)
    return f"{child.exit_code}" + "".join(f" ({line})" for line in islice(lines, 1))
