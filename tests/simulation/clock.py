"""An event loop whose time is virtual, and synchronous code that runs in it.

Nothing here looks at a clock or waits for anything real: when no callback is ready, time jumps to
the next timer. Callbacks that are ready run in the order in which they became so, which asyncio
promises; what varies is drawn from the seed, by those who wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any


class Standstill(Exception):
    """Everything waits, and no timer is set."""


class VirtualLoop(asyncio.BaseEventLoop):
    """One thread, no I/O, no clock."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._clock_resolution = 1e-9
        self._selector = self  # BaseEventLoop asks it for events, between two rounds

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Stands for waiting for I/O: time passes at once."""
        if timeout is None:
            raise Standstill
        self._now += timeout
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody has to be woken."""


class Fibre:
    """Synchronous code that can wait for coroutines of the loop, while everything else goes on.

    It has a thread of its own, but never runs while the loop does: each hands over to the other.
    """

    def __init__(self, work: Callable[[Fibre], None]) -> None:
        self._work = work
        self._turn = threading.Semaphore(0)
        self._parked = threading.Semaphore(0)
        self._wanted: Coroutine[Any, Any, Any] | None = None
        self._answer: Any = None
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Run the code to its end; what it raises is raised here."""
        threading.Thread(target=self._main, daemon=True).start()
        while True:
            self._parked.acquire()
            wanted, self._wanted = self._wanted, None
            if wanted is None:
                break
            try:
                self._answer, self._error = await wanted, None
            except BaseException as error:  # the code is told, and ends
                self._answer, self._error = None, error
            self._turn.release()
        if self._error is not None:
            raise self._error

    def wait(self, wanted: Coroutine[Any, Any, Any]) -> Any:
        """Called by the code: what a coroutine of the loop returns, or raises."""
        self._wanted = wanted
        self._parked.release()
        self._turn.acquire()
        if self._error is not None:
            raise self._error
        return self._answer

    def _main(self) -> None:
        try:
            self._work(self)
            self._error = None
        except BaseException as error:
            self._error = error
        finally:
            self._parked.release()


def tracked_tasks(owner: Callable[[], dict[asyncio.Task[Any], None] | None]) -> Any:
    """A task factory that notes each task with whoever makes it, as long as it runs."""

    def make(
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any],
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, context=context)
        tasks = context.run(owner) if context else owner()
        if tasks is not None:
            tasks[task] = None
            task.add_done_callback(tasks.pop)
        return task

    return make
