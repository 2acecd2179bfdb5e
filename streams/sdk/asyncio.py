"""The SDK for programs with an event loop: the same names, as coroutines.

The blocking SDK makes every call in another thread, so decisions, rejections and charges are the
same. One thing differs: a task can be cancelled while it waits, and its charge is made
nevertheless, although the caller never receives the decision. Such a run cannot be used any more.
Open it again with ``released``, which hands the step back.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from numpy.typing import ArrayLike

from streams.records import Policy
from streams.sdk.arguments import UsersLike
from streams.sdk.attempt import Ahead
from streams.sdk.client import Turnstile
from streams.sdk.decisions import StepDecision
from streams.sdk.errors import Unusable
from streams.sdk.observing import Observer
from streams.sdk.roster import Roster
from streams.sdk.roster_steps import RosterStep
from streams.sdk.run import Run

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[Turnstile, P], T],
) -> Callable[Concatenate[AsyncTurnstile, P], Coroutine[Any, Any, T]]:
    """Return a coroutine function that calls a ``Turnstile`` method in another thread."""

    @functools.wraps(method)
    async def awaited(self: AsyncTurnstile, /, *args: P.args, **options: P.kwargs) -> T:
        return await asyncio.to_thread(method, self.blocking, *args, **options)

    return awaited


def _followed(
    method: Callable[Concatenate[Turnstile, P], Iterator[T]],
) -> Callable[Concatenate[AsyncTurnstile, P], Following[T]]:
    """Return a method whose result iterates in a thread of its own."""

    @functools.wraps(method)
    def followed(self: AsyncTurnstile, /, *args: P.args, **options: P.kwargs) -> Following[T]:
        return Following(functools.partial(method, self.blocking, *args, **options))

    return followed


class AsyncTurnstile:
    """``Turnstile`` for the tasks of one event loop.

        async with AsyncTurnstile("localhost:9092") as t:
            await t.create_dataset("mnist", epsilon=8.0, delta=1e-5)
            run = await t.run("mnist", "night-7", released=last_released())
            d = await run.charge(users, norms, noise_stddev=4.0, clip_norm=1.0)
            async for halt in t.halts("mnist", follow=False):
                print(halt.user)

    A loop over HALTs or odometer records that is left early leaves a thread behind. The thread ends
    with the next record, or when this object is closed.

    Args:
        options: those of ``Turnstile``. The connection is made by ``async with``.

    Attributes:
        blocking: the ``Turnstile`` that makes the calls.
    """

    blocking: Turnstile

    def __init__(self, kafka: str | None = None, **options: Any) -> None:
        self._open: Callable[[], Turnstile] = functools.partial(Turnstile, kafka, **options)

    @classmethod
    def in_memory(cls, **options: Any) -> AsyncTurnstile:
        """Run the service in this process, as ``Turnstile.in_memory`` does."""
        made = cls()
        made._open = functools.partial(Turnstile.in_memory, **options)
        return made

    @classmethod
    def open(cls, path: str | PathLike[str], **options: Any) -> AsyncTurnstile:
        """Keep budgets in a file on this machine, as ``Turnstile.open`` does."""
        made = cls()
        made._open = functools.partial(Turnstile.open, path, **options)
        return made

    async def __aenter__(self) -> AsyncTurnstile:
        self.blocking = await asyncio.to_thread(self._open)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def partitions(self) -> int:
        """Return P, the number of partitions that users are spread over."""
        return self.blocking.partitions

    @property
    def is_broken(self) -> bool:
        """Return whether answers can no longer be received."""
        return self.blocking.is_broken

    @property
    def log_name(self) -> str:
        """Return the log's name in metrics."""
        return self.blocking.log_name

    def observe(self, observer: Observer) -> None:
        """Register an observer that wraps every request; this does not block."""
        self.blocking.observe(observer)

    async def run(self, dataset: str, name: str, **options: Any) -> AsyncRun:
        """Open a run, as ``Turnstile.run`` does."""
        return AsyncRun(await asyncio.to_thread(self.blocking.run, dataset, name, **options))

    async def resume(
        self, dataset: str, name: str, attempt: int, token: str, **options: Any
    ) -> AsyncRun:
        """Continue an attempt that was opened before, as ``Turnstile.resume`` does."""
        resume = self.blocking.resume
        return AsyncRun(await asyncio.to_thread(resume, dataset, name, attempt, token, **options))

    close = _awaited(Turnstile.close)
    create_dataset = _awaited(Turnstile.create_dataset)
    withdraw_dataset = _awaited(Turnstile.withdraw_dataset)
    close_dataset = _awaited(Turnstile.close_dataset)
    close_run = _awaited(Turnstile.close_run)
    erase = _awaited(Turnstile.erase)
    set_access = _awaited(Turnstile.set_access)
    halts = _followed(Turnstile.halts)
    odometer = _followed(Turnstile.odometer)


class AsyncRun:
    """``Run`` for the tasks of one event loop; one task at a time may use it.

    It has the attributes of ``Run``, and its methods as coroutines. Arguments and errors are the
    same. After a call that was cancelled before its answer arrived, all calls raise ``Unusable``.

    Attributes:
        blocking: the ``Run`` that makes the calls.
    """

    step: int
    attempt: int
    token: str
    interrupted: bool
    policy: Policy
    outer: tuple[Policy, ...]
    min_separation: int | None

    def __init__(self, blocking: Run) -> None:
        self.blocking = blocking
        self._cancelled = False

    def __getattr__(self, name: str) -> Any:
        if name not in AsyncRun.__annotations__:
            raise AttributeError(f"AsyncRun has no attribute {name!r}")
        return getattr(self.blocking, name)

    async def charge(self, users: UsersLike, norms: ArrayLike, **options: Any) -> StepDecision:
        """Charge one step, as ``Run.charge`` does."""
        return await self.make(self.blocking.charge, users, norms, **options)

    async def charge_ahead(
        self, users: UsersLike, norms: ArrayLike, **options: Any
    ) -> AsyncAhead[StepDecision]:
        """Send the next step, as ``Run.charge_ahead`` does."""
        return AsyncAhead(
            await self.make(self.blocking.charge_ahead, users, norms, **options), self
        )

    async def enrol(self, users: UsersLike, **options: Any) -> AsyncRoster:
        """Enrol users, as ``Run.enrol`` does."""
        return AsyncRoster(await self.make(self.blocking.enrol, users, **options), self)

    async def abandon(self, timeout: float | None = None) -> None:
        """Give up the step that was handed back, as ``Run.abandon`` does."""
        await self.make(self.blocking.abandon, timeout)

    async def check_attempt(self, timeout: float | None = None) -> None:
        """Check that this attempt is the newest, as ``Run.check_attempt`` does."""
        await self.make(self.blocking.check_attempt, timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Close the run permanently, as ``Run.close`` does."""
        await self.make(self.blocking.close, timeout)

    async def make(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Make a call of the blocking run in another thread.

        Raises:
            Unusable: an earlier call was cancelled before its answer arrived.
        """
        if self._cancelled:
            raise Unusable(
                f"a call of run {self.blocking.name!r} was cancelled before its answer arrived, so "
                "its outcome is unknown: open the run again, with released="
            )
        try:
            return await asyncio.to_thread(call, *args, **options)
        except asyncio.CancelledError:
            self._cancelled = True
            raise


class AsyncRoster:
    """``Roster`` with awaited charges; levels are set without waiting.

    Attributes:
        blocking: the ``Roster`` that makes the calls.
    """

    def __init__(self, blocking: Roster, run: AsyncRun) -> None:
        self.blocking, self._run = blocking, run
        self.set_norms, self.observe = blocking.set_norms, blocking.observe

    def __len__(self) -> int:
        return len(self.blocking)

    async def charge(self, **options: Any) -> RosterStep:
        """Charge one step, as ``Roster.charge`` does."""
        return await self._run.make(self.blocking.charge, **options)

    async def charge_ahead(self, **options: Any) -> AsyncAhead[RosterStep]:
        """Send the next step, as ``Roster.charge_ahead`` does."""
        return AsyncAhead(await self._run.make(self.blocking.charge_ahead, **options), self._run)


class AsyncAhead(Generic[T]):
    """``Ahead`` with an awaited decision.

    Attributes:
        blocking: the ``Ahead`` that makes the calls.
    """

    def __init__(self, blocking: Ahead[T], run: AsyncRun) -> None:
        self.blocking, self._run = blocking, run

    async def decision(self, timeout: float | None = None) -> T:
        """Wait for the decision, as ``Ahead.decision`` does."""
        return await self._run.make(self.blocking.decision, timeout)


class Following(AsyncIterator[T]):
    """An asynchronous iterator over a blocking one; each item may take arbitrarily long.

    The blocking iterator starts at once, in a daemon thread.
    """

    def __init__(self, begin: Callable[[], Iterator[T]]) -> None:
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self._wanted = threading.Semaphore(0)
        self._given: asyncio.Queue[T | _End] = asyncio.Queue()
        self._left = False
        threading.Thread(target=self._work, name="turnstile-follower", daemon=True).start()

    async def __anext__(self) -> T:
        if self._left:
            raise StopAsyncIteration
        self._wanted.release()
        given = await self._given.get()
        if not isinstance(given, _End):
            return given
        self._left = True
        if given.error is not None:
            raise given.error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop iterating. The thread ends with the next record, or when the Turnstile is closed."""
        self._left = True
        self._wanted.release()

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            each = self._begin()
            while self._is_wanted():
                self._deliver(next(each))
        except StopIteration:
            pass
        except BaseException as raised:
            error = raised
        self._deliver(_End(error))

    def _is_wanted(self) -> bool:
        self._wanted.acquire()
        return not self._left

    def _deliver(self, given: T | _End) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._given.put_nowait, given)


@dataclass(frozen=True)
class _End:
    """The end of the iteration, with the error that ended it, if any."""

    error: BaseException | None
