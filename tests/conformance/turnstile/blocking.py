"""An ``AsyncTurnstile``, called as a ``Turnstile`` is: for the suite that both have to pass."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from streams import AsyncTurnstile
from streams.sdk.asyncio import AsyncAhead, AsyncRoster, AsyncRun, Following

T = TypeVar("T")


class Blocking:
    """What waits for each call of something asynchronous, in an event loop of its own thread."""

    def __init__(self, wrapped: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._wrapped, self._loop = wrapped, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if not callable(found):
            return found

        async def made(*args: Any, **options: Any) -> Any:
            given = found(*args, **options)
            return await given if isinstance(given, Coroutine) else given

        def called(*args: Any, **options: Any) -> Any:
            given = self._waited(made(*args, **options))
            if isinstance(given, Following):
                return self._each(given)
            kept = isinstance(given, AsyncRun | AsyncRoster | AsyncAhead)
            return Blocking(given, self._loop) if kept else given

        return called

    def __len__(self) -> int:
        return len(self._wrapped)

    def _waited(self, awaited: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(awaited, self._loop).result()

    def _each(self, given: Following[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._waited(_next(given))
                except StopAsyncIteration:
                    return
        finally:
            self._waited(given.aclose())


class BlockingTurnstile(Blocking):
    """With its event loop, from ``with`` to its end."""

    def __init__(self, wrapped: AsyncTurnstile) -> None:
        super().__init__(wrapped, asyncio.new_event_loop())
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> BlockingTurnstile:
        self._thread.start()
        self._waited(self._wrapped.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def close(self) -> None:
        self._waited(self._wrapped.__aexit__(None, None, None))


async def _next(given: Following[Any]) -> Any:
    return await anext(given)
