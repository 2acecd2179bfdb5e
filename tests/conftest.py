"""A test that starts a process says so, with the mark `process`.

Everything in `integration` has it. What has no mark runs in `make check`, and fails when it starts
one all the same. What has the mark `thorough` runs with the profile of that name alone.
"""

from __future__ import annotations

import _posixsubprocess
import asyncio
import gc
import inspect
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.examples import PROFILES

# No test is about the duration of an example. Examples follow from the test's source, so that a
# run fails only because of a change; `make nightly` draws new ones.
for _profile, _examples in PROFILES.items():
    settings.register_profile(
        _profile,
        deadline=None,
        max_examples=_examples,
        derandomize=_profile != "thorough",
        print_blob=True,
    )
settings.load_profile("full")

pytest_plugins = ["tests.servers.shared"]

INTEGRATION = Path(__file__).with_name("integration")
STARTS = {
    os: ("execv", "execve", "fork", "forkpty", "posix_spawn", "posix_spawnp", "system"),
    _posixsubprocess: ("fork_exec",),
    subprocess.Popen: ("__init__",),
}
"""What Python starts processes by. An audit hook would see them too, but Python calls it for every
`id()` as well: that took every seventh second of the tests."""

INQUIRIES = frozenset({"file", "uname"})
"""What `platform` asks about this machine when somebody imports it."""

_without_processes: str | None = None
"""The test that is running now, if it has no mark."""


GATEWAY_FUZZ = Path(__file__).with_name("unit") / "gateway" / "test_fuzz.py"
"""The only tests that need the plugin of Schemathesis, which takes seconds to load."""


def _leaves_out_slow_tests(config: pytest.Config) -> bool:
    return "not slow" in config.option.markexpr


def pytest_configure(config: pytest.Config) -> None:
    if not _leaves_out_slow_tests(config):
        config.pluginmanager.import_plugin("schemathesis.pytest.plugin")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if collection_path == GATEWAY_FUZZ and _leaves_out_slow_tests(config) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nothing that is collected is garbage, now or while tests run: nobody looks through it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(INTEGRATION):
            item.add_marker("process")
    if config.getoption("--hypothesis-profile") != "thorough":
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items[:] = _dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """The same, in an order in which each worker of xdist begins with modules of integration.

    They wait as much as they compute, so that they go well beside each other; and what is quick
    comes last, when it can be divided evenly. A worker is first given as many tests as another,
    one behind the other.
    """
    services: dict[Path, list[pytest.Item]] = {}
    quick: list[pytest.Item] = []
    for item in items:
        waits = item.path.is_relative_to(INTEGRATION)
        (services.setdefault(item.path, []) if waits else quick).append(item)
    dealt: list[pytest.Item] = []
    modules = list(services.values())
    for worker in range(workers):
        hand = [item for module in modules[worker::workers] for item in module]
        size = (len(items) - len(dealt)) // (workers - worker)
        rest = max(size - len(hand), 0) if worker < workers - 1 else len(quick)
        dealt += hand + quick[:rest]
        quick = quick[rest:]
    return dealt


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _without_processes
    _without_processes = None if item.get_closest_marker("process") else item.nodeid
    try:
        return (yield)
    finally:
        _without_processes = None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine. Its fixture `bench` or `virtual_time`, if any, runs it."""
    test, given = pyfuncitem.obj, dict(pyfuncitem.funcargs)
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: given[name] for name in inspect.signature(test).parameters}
    if on_bench := arguments.pop("bench", None):
        on_bench(lambda bench: test(bench=bench, **arguments))
    else:
        given.get("virtual_time", asyncio.run)(test(**arguments))
    return True


def _refused(start: Callable[..., Any]) -> Callable[..., Any]:
    """The same, for tests that have the mark; for the others a failure."""

    @wraps(start)
    def guarded(*arguments: Any, **options: Any) -> Any:
        # What services of other tests start again by themselves, in threads, is not this one's.
        mine = threading.current_thread() is threading.main_thread()
        if mine and _without_processes is not None and not _inquires(start, *arguments, **options):
            pytest.fail(f"{_without_processes} starts a process and is not marked `process`")
        return start(*arguments, **options)

    return guarded


def _inquires(start: Callable[..., Any], *arguments: Any, **options: Any) -> bool:
    """Whether a `Popen` asks about the machine; it is given itself and a list of words."""
    if start.__qualname__ != "Popen.__init__":
        return False
    command = options["args"] if "args" in options else arguments[1]
    return isinstance(command, list) and command[0] in INQUIRIES


for _owner, _names in STARTS.items():
    for _name in _names:
        setattr(_owner, _name, _refused(getattr(_owner, _name)))
