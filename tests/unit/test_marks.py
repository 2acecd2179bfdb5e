"""A test without the mark `process` starts none, by any of Python's ways."""

import asyncio
import multiprocessing
import os
import platform
import subprocess
import sys

import pytest

WAYS = {
    "fork": os.fork,
    "system": lambda: os.system("true"),
    "exec": lambda: os.execv(sys.executable, [sys.executable]),
    "posix_spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "subprocess": lambda: subprocess.run(["true"]),
    "asyncio": lambda: asyncio.run(asyncio.create_subprocess_exec("true")),
    "forked worker": lambda: multiprocessing.get_context("fork").Process().start(),
    "spawned worker": lambda: multiprocessing.get_context("spawn").Process().start(),
}


@pytest.mark.parametrize("start", WAYS.values(), ids=WAYS)
def test_a_process_is_not_started(start):
    with pytest.raises(pytest.fail.Exception):
        start()


def test_libraries_may_ask_what_machine_this_is():
    platform.uname()
    assert subprocess.run(["uname"], check=False).returncode == 0


@pytest.mark.process
def test_with_the_mark_processes_are_started():
    assert subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0
