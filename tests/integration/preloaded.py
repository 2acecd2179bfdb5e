"""Starts programs by a fork of a process that has already imported their modules.

Imports are most of the start time of a worker, an answerer or a trainer, and the tests start
hundreds. A forked program has everything else that a started one has: a guard
(`streams/local/guard.py`) in its own session, and under it the program with its own variables,
descriptors, signals and process id. Only the exec is missing.

    test                         this module, as a process             guard, forked
      | connects, sends              |                                   |
      |   variables, descriptors,    | forks                             |
      |   the words of a guard  ---> | --------------------------------> | forks the program
      |                              | <-------------------------------- | ends as the program did
      | <--- its exit code           |
"""

from __future__ import annotations

import atexit
import gc
import inspect
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from streams.local import guard
from streams.local.children import Child

OURS = "\nfrom streams."
"""The modules of the programs that are forked; other programs are started normally."""
IMPORTED = (
    "faust.app.router",
    "faust.assignor.partition_assignor",
    "faust.fixups.django",
    "faust.tables.objects",
    "faust.tables.sets",
    "faust.transport.utils",
    "streams.answerer.answerer_app",
    "streams.cli.local_commands",
    "streams.cli.main",
    "streams.cli.answer_commands",
    "streams.sdk.client",
    "streams.trainers.loop",
    "streams.trainers.steps",
    "streams.worker.app",
)
"""The modules to import before the fork; Faust and the command line import some of them lazily."""
_MOST_DESCRIPTORS = 1024


class ForkedGuard:
    """The part of the interface of `Popen` that a `Child` uses for its guard."""

    def __init__(
        self,
        address: Path,
        words: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Sequence[int],
    ) -> None:
        """``descriptors``: of what it writes to its log, and those that it holds."""
        nothing = os.open(os.devnull, os.O_RDONLY)
        from_guard, answers = os.pipe()
        self.stdout = os.fdopen(from_guard, "rb", buffering=0)
        self._ended = socket.socket(socket.AF_UNIX)
        self._ended.connect(str(address))
        asked = json.dumps({"words": list(words), "environment": dict(environment)}).encode()
        socket.send_fds(self._ended, [len(asked).to_bytes(4)], [nothing, answers, *descriptors])
        self._ended.sendall(asked)
        os.close(nothing)
        os.close(answers)
        self._lock = threading.Lock()
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None if the process is running."""
        with self._lock:
            if self._code is None:
                try:
                    exit_code = self._ended.recv(8, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return None
                self._code = int(
                    exit_code or b"137"
                )  # the forking process has ended, and with it all forked ones
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        until = None if timeout is None else time.monotonic() + timeout
        ended = select.poll()
        ended.register(self._ended, select.POLLIN)
        while (code := self.poll()) is None:
            left = None if until is None else max(0.0, until - time.monotonic())
            if left == 0.0:
                raise subprocess.TimeoutExpired("guard", timeout or 0.0)
            ended.poll(None if left is None else 1000.0 * left)
        return code


@contextmanager
def preloaded() -> Iterator[type[Child]]:
    """Start the forking process; return the class of its children."""
    with (
        tempfile.TemporaryDirectory() as folder,  # pytest's are longer than 107 characters
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(address := Path(folder, "forks"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None

        class Forked(Child):
            """A child that is forked if it is one of the known programs."""

            def _start_guard(
                self,
                words: Sequence[str],
                output: Any,
                environment: Mapping[str, str] | None,
                hold: Sequence[int],
            ) -> Any:
                if not _is_ours(words):
                    return super()._start_guard(words, output, environment, hold)
                if not process.stdout.closed:  # it closes the pipe when it is ready
                    with process.stdout as ready:
                        ready.readline()
                variables = os.environ if environment is None else environment
                return ForkedGuard(address, words, variables, [output.fileno(), *hold])

        try:
            yield Forked
        finally:
            process.stdin.close()


def _is_ours(words: Sequence[str]) -> bool:
    """Return whether a command runs Python with a known program, as text or as a file."""
    _, _, *command = words
    if len(command) < 2 or command[0] != sys.executable:
        return False
    program = Path(command[1])
    source = command[2] if command[1] == "-c" else program.read_text() if program.is_file() else ""
    return OURS in source


# --- the forking process ---


def _serve(address: str) -> None:
    """Fork a guard for each connection and send its exit code, until the socket is closed."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    guards: dict[int, socket.socket] = {}
    os.write(1, b"ready\n")
    while True:
        readable, _, _ = select.select([0, woken, listening], [], [])
        if 0 in readable:
            return  # forked processes end by themselves
        if woken in readable:
            os.read(woken, 512)
            _tell_ends(guards)
        if listening in readable:
            connection, _ = listening.accept()
            size, descriptors, _, _ = socket.recv_fds(connection, 4, 64)
            with connection.makefile("rb") as asking:
                asked = json.loads(asking.read(int.from_bytes(size)))
            forked = os.fork()
            if forked == 0:
                _be_guard(descriptors, **asked)
            for descriptor in descriptors:
                os.close(descriptor)
            guards[forked] = connection


def _tell_ends(guards: dict[int, socket.socket]) -> None:
    while guards:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if not ended:
            return
        with guards.pop(ended) as connection:
            code = os.waitstatus_to_exitcode(status)
            connection.sendall(b"%d" % (code if code >= 0 else 128 - code))


def _be_guard(
    descriptors: Sequence[int], words: Sequence[str], environment: Mapping[str, str]
) -> NoReturn:
    """Run ``python guard.py`` in the forked process, with a fork instead of an exec."""
    os.setsid()
    _reset_signals()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(len(descriptors), _MOST_DESCRIPTORS)
    os.environ.clear()
    os.environ.update(environment)
    os.execvp = _be_program
    _, grace, *command = words
    _end(lambda: guard.main(os.getppid(), float(grace), command))


def _be_program(_: str, command: Sequence[str]) -> NoReturn:
    """Run ``python PROGRAM`` in the process that the guard forked, without an exec."""
    os.closerange(3, _MOST_DESCRIPTORS)
    _reset_signals()

    def run() -> None:
        if command[1] == "-c":
            sys.argv = ["-c", *command[3:]]
            exec(command[2], {"__name__": "__main__"})
        else:
            sys.argv = list(command[1:])
            runpy.run_path(command[1], run_name="__main__")

    _end(run)


def _reset_signals() -> None:
    """Restore the signal handlers of a new Python process."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGALRM, signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def _end(run: Any) -> NoReturn:
    """Run a function, and exit as Python does."""
    code: Any = 1
    try:
        code = run()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    for _name in IMPORTED:
        import_module(_name)
    # Faust looks up the module of each task. The lookup is cached for all modules: it takes
    # two fifths of a worker's start time without imports.
    inspect.getmodule(inspect.currentframe())
    gc.collect()
    gc.freeze()
    _serve(sys.argv[1])
