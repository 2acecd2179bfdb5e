"""Child processes that end with their parent, even if it is killed, and write a log.

`signals_held` delays signals while a child is started or stopped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Final

from streams.local.errors import LocalFailure, LocalStackError

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
            name: of the program, in messages.
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
        self._using_pipe = threading.RLock()  # a closed descriptor number may be reused
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(log, "ab", opener=_open_private) as output:
            self._log_start = output.seek(0, 2)
            self._guard = self._start_guard((str(grace), *command), output, environment, hold)
        assert self._guard.stdout is not None
        with self._guard.stdout as stream:
            kind, _, text = stream.readline().decode().strip().partition(" ")
        if kind != "pid":
            self.kill()
            raise LocalStackError(
                LocalFailure.NOT_STARTED,
                f"{name} could not be started: {command[0]}: {text or 'no answer'}",
            )
        self.pid = int(text)

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
        self._command(b"T")

    def hasten(self) -> None:
        """End the program with SIGKILL, without waiting."""
        self._command(b"K")

    def kill(self) -> None:
        """End the program with SIGKILL and wait for it."""
        self.hasten()
        self._guard.wait()
        self._close()

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

    def _start_guard(
        self,
        words: Sequence[str],
        output: BinaryIO,
        environment: Mapping[str, str] | None,
        hold: Sequence[int],
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=None if environment is None else dict(environment),
            bufsize=0,
            start_new_session=True,
            pass_fds=tuple(hold),
        )

    def _command(self, letter: bytes) -> None:
        pipe = self._guard.stdin
        with self._using_pipe:
            if pipe is not None and not pipe.closed:
                with suppress(OSError):  # the guard, and so the program, has ended
                    pipe.write(letter)

    def _close(self) -> None:
        with self._using_pipe:
            if self._guard.stdin is not None:
                with suppress(OSError):
                    self._guard.stdin.close()


STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a program to end: from Ctrl-C, a supervisor, a closed terminal."""


@contextmanager
def signals_held(on_signal: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Deliver signals that arrive within this context at its end.

    A signal handler may raise. Between the start of a child and the line that stores it, that would
    leave a child that is never ended. Outside the main thread, where Python handles no signals,
    this context does nothing.

    Args:
        on_signal: called for each signal immediately.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[signal.Signals] = []

    def hold(number: int, frame: FrameType | None) -> None:
        arrived.append(signal.Signals(number))
        on_signal()

    before = {}
    try:
        for number in STOPPING:
            handler = signal.getsignal(number)
            # Ignored signals (nohup) stay ignored; a handler not set by Python cannot be restored.
            if handler not in (signal.SIG_IGN, None):
                before[number] = handler
                signal.signal(number, hold)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)
