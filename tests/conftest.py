"""A test that starts a process says so, with the mark `process`.

Everything in `integration` has it. What has no mark runs in `make check`, and fails when it starts
one all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# How long an example takes is not what any test is about.
settings.register_profile("full", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.register_profile("check", deadline=None, max_examples=10)
settings.load_profile("full")

INTEGRATION = Path(__file__).with_name("integration")
STARTS = frozenset(
    {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
)
INQUIRIES = frozenset({"file", "uname"})
"""What `platform` asks about this machine when somebody imports it."""

_without_processes: str | None = None
"""The test that is running now, if it has no mark."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(INTEGRATION):
            item.add_marker("process")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _without_processes
    _without_processes = None if item.get_closest_marker("process") else item.nodeid
    try:
        return (yield)
    finally:
        _without_processes = None


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS and _without_processes is not None and arguments[0] not in INQUIRIES:
        pytest.fail(f"{_without_processes} starts a process and is not marked `process`")


sys.addaudithook(_refuse)
