"""Print what this machine lacks before anything is installed; exit with 1 if it lacks something.

    python requirements/ready.py

It needs the standard library alone, and runs on old Pythons to name the version that is needed.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib.util import find_spec

OLDEST = (3, 11)
GLIBC = (2, 28)  # of the wheels of numpy, Valkey and Java
MACHINES = ("x86_64", "aarch64", "arm64")  # with wheels of Valkey and Java
REDIS = ("redis-server", "valkey-server")


def missing() -> list[str]:
    """Return what is missing, each with how to get it."""
    lacks = []
    if sys.version_info < OLDEST:
        lacks.append(f"Python 3.11 or later: this is {platform.python_version()}")
    if find_spec("ensurepip") is None:
        lacks.append("Python's module ensurepip: on Debian and Ubuntu, install python3-venv")
    if sys.platform == "linux" and _glibc() < GLIBC:
        lacks.append("glibc 2.28 or later, which the wheels need")
    if platform.machine() not in MACHINES:
        if not any(map(shutil.which, REDIS)):
            lacks.append("a Redis server: no wheel fits this machine; install redis-server")
        if shutil.which("java") is None:
            lacks.append("Java 17 or later: no wheel fits this machine; install a Java runtime")
    return lacks


def _glibc() -> tuple[int, ...]:
    """Return the version of glibc; () with another C library."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError):
        return ()
    return tuple(map(int, version.split("."))) if name == "glibc" else ()


if __name__ == "__main__":
    lacks = missing()
    for thing in lacks:
        print(f"Missing: {thing}", file=sys.stderr)
    sys.exit(bool(lacks))
