"""Runs one program and ends it when its parent process has ended.

It is started by path, as ``python -I -S guard.py PARENT GRACE PROGRAM ARGUMENT...``, and imports
nothing of this package, so it starts quickly. It writes the program's process id to
standard output; the program's output goes to standard error, the log.

When PARENT has ended, even by SIGKILL, the program gets SIGTERM and, GRACE seconds later, SIGKILL.
On Linux the program also dies with the guard (PR_SET_PDEATHSIG, which depends on the thread that
forked: the parent may have several, the guard has one). The guard's exit code is the program's, or
128 plus the signal that ended it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from types import FrameType

_PR_SET_PDEATHSIG = 1
_LOOK_FOR_PARENT = 0.5  # seconds


def _die_with(guard: int) -> None:
    """Make the program that this process is about to execute die with the guard."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # the guard died before the line above
            os._exit(1)


def main(parent: int, grace: float, command: list[str]) -> int:
    """Run the command until it ends or the parent has ended; return the exit code."""
    os.umask(0o077)  # data and logs contain ids of users
    child = subprocess.Popen(
        command,
        stdout=2,
        process_group=0,
        close_fds=False,  # the program holds what the guard holds, such as a lock
        preexec_fn=partial(_die_with, os.getpid()),
    )
    # A supervisor may signal every process. The parent decides in which order they stop.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, b"%d\n" % child.pid)
    os.close(1)
    left = [signal.SIGKILL, signal.SIGTERM]

    def look(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent and left:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, left.pop())
            signal.setitimer(signal.ITIMER_REAL, grace)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_FOR_PARENT, _LOOK_FOR_PARENT)
    code = child.wait()
    # Python restores the default action, which ends a process, before it exits.
    signal.setitimer(signal.ITIMER_REAL, 0)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
