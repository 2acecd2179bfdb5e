"""Runs one program and ends it when its parent process has ended.

It is started by path, as ``python -I -S guard.py GRACE PROGRAM ARGUMENT...``, and imports nothing
of this package, so it starts in a few milliseconds.

===============  ===================================================================
descriptor 0     commands from the parent: ``T`` asks the program to end (SIGTERM),
                 ``K`` ends it (SIGKILL); end of file means that the parent has ended
descriptor 1     one line back: ``pid N``, or ``error TEXT``
descriptor 2     the log: standard output and standard error of the program
===============  ===================================================================

The pipe closes when the parent ends, even by SIGKILL. Then the program gets SIGTERM and, GRACE
seconds later, SIGKILL. On Linux the program also dies with the guard (PR_SET_PDEATHSIG, which
depends on the thread that forked; the guard has one thread). The guard's exit code is the
program's, or 128 plus the signal that ended it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_LOOK_FOR_PARENT = 1.0  # seconds: a forked copy of the parent may hold the pipe open


def _become(command: list[str]) -> None:
    """Execute the program in the forked process; return only by raising OSError."""
    guard = os.getppid()
    os.setpgid(0, 0)
    os.umask(0o077)  # data and logs contain ids of users
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # the guard died before the line above
            os._exit(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    # Python ignores SIGPIPE and SIGXFSZ; programs expect the default actions.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execvp(command[0], command)


def _spawn(command: list[str]) -> int:
    """Start the program; return its process id, or -1 after reporting why it could not start."""
    for descriptor in range(3, 64):  # descriptors to hold open stay with the guard
        with suppress(OSError):
            os.set_inheritable(descriptor, False)
    receive, send = os.pipe()  # closed by a successful exec
    child = os.fork()
    if child == 0:
        try:
            _become(command)
        except BaseException as error:
            os.write(send, str(error).encode())
        os._exit(127)
    os.close(send)
    with suppress(OSError):  # the child has done it already, or has ended
        os.setpgid(child, child)
    reason = os.read(receive, 4096).decode().replace("\n", " ")
    os.close(receive)
    os.write(1, (f"error {reason}" if reason else f"pid {child}").encode() + b"\n")
    return -1 if reason else child


def _signal_group(child: int, number: int) -> None:
    # The child is not reaped yet, so no other process can have its id.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, number)


def main(grace: float, command: list[str]) -> int:
    """Run the command until it ends or the parent has ended; return the exit code."""
    parent = os.getppid()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    ended: list[int] = []
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: ended.append(number))

    child = _spawn(command)
    if child < 0:
        return 127
    watched, deadline, ending = [0, woken], float("inf"), False
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if time.monotonic() >= deadline:
            _signal_group(child, signal.SIGKILL)
            deadline = float("inf")
        pause = max(0.0, min(_LOOK_FOR_PARENT, deadline - time.monotonic()))
        readable, _, _ = select.select(watched, [], [], pause)
        if woken in readable:
            os.read(woken, 512)
        alone = bool(ended) or os.getppid() != parent
        if 0 in readable:
            commands = os.read(0, 64)
            if not commands:
                watched, alone = [woken], True
            if b"K" in commands:
                _signal_group(child, signal.SIGKILL)
            elif b"T" in commands:
                _signal_group(child, signal.SIGTERM)
        if alone and not ending:
            ending, deadline = True, time.monotonic() + grace
            _signal_group(child, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
