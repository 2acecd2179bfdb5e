"""Child processes that end with their parent, even if it is killed, and write a log."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from streams.local.launch_errors import LocalFailure, LocalStackError

_GUARD = Path(__file__).with_name("guard.py")
_TAIL_BYTES = 16384
_POLL = 0.02  # seconds


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Child:
    """One program under a guard (``guard.py``), which ends it when this process has ended.

    Standard output and standard error are appended to the log. Signals from the terminal do not
    reach the program, because this process decides in which order its children stop.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        grace: float = 10.0,
        hold: Sequence[int] = (),
    ) -> None:
        """Start the program.

        Args:
            name: the program's name, in messages.
            command: the program and its arguments.
            log: file for its output.
            environment: all environment variables; those of this process by default.
            grace: seconds between SIGTERM and SIGKILL.
            hold: descriptors that stay open until the program has ended, such as a lock.

        Raises:
            LocalStackError: the program cannot be executed.
        """
        self.name = name
        self.log = log
        self.grace = grace
        self.started = time.monotonic()
        if shutil.which(command[0], path=(environment or os.environ).get("PATH")) is None:
            raise LocalStackError(
                LocalFailure.NOT_STARTED,
                f"{name} could not be started: {command[0]} is not an executable file.",
            )
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        words = (str(os.getpid()), str(grace), *command)
        with open(log, "ab", opener=_open_private) as output:
            self._log_start = output.seek(0, 2)
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                env=None if environment is None else dict(environment),
                start_new_session=True,
                pass_fds=tuple(hold),
            )
        assert self._guard.stdout is not None
        with self._guard.stdout as stream:
            line = stream.readline()
        if not line:
            self._guard.wait()
            raise LocalStackError(LocalFailure.NOT_STARTED, self.explain("could not be started"))
        self.pid = int(line)

    @property
    def exit_code(self) -> int | None:
        """The program's exit code, 128 plus the signal that ended it, or None while it runs."""
        return self._guard.poll()

    @property
    def running(self) -> bool:
        """Return whether the program is running."""
        return self.exit_code is None

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the program has ended; return its exit code, or None after the timeout."""
        try:
            return self._guard.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """Ask the program to end (SIGTERM), without waiting."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the program with SIGKILL and wait for it."""
        self._signal(signal.SIGKILL)
        self._guard.wait()

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after the grace period; return when the program has ended."""
        self.terminate()
        self.wait(self.grace)
        self.kill()

    def wait_for(self, line: str, timeout: float) -> None:
        """Wait until the program has written a line to its log that contains this text.

        Raises:
            LocalStackError: the program ended, or the timeout passed; with the log's last lines.
        """
        deadline = time.monotonic() + timeout
        while not any(line in text for text in self.log_tail(_TAIL_BYTES)):
            code = self.exit_code
            if code is not None:
                raise LocalStackError(
                    LocalFailure.EXITED, self.explain(f"ended with exit code {code} while starting")
                )
            if time.monotonic() >= deadline:
                raise LocalStackError(
                    LocalFailure.NOT_READY, self.explain(f"was not ready after {timeout:g} seconds")
                )
            time.sleep(_POLL)

    def explain(self, what: str, lines: int = 20) -> str:
        """Return a message: ``what`` happened, the path of the log and its last lines."""
        tail = self.log_tail(lines)
        quoted = "\n".join(f"    {line}" for line in tail) if tail else "    (nothing)"
        return f"{self.name} {what}. The last lines of its log, {self.log}:\n{quoted}"

    def log_tail(self, lines: int = 20) -> list[str]:
        """Return the last lines that this program, not an earlier one, wrote to the log."""
        with suppress(OSError), self.log.open("rb") as log:
            end = log.seek(0, 2)
            log.seek(max(self._log_start, end - _TAIL_BYTES))
            return log.read().decode(errors="replace").splitlines()[-lines:]
        return []

    def _signal(self, number: signal.Signals) -> None:
        # The guard ends as soon as the program has, long before its process id is used again.
        if self.running:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
