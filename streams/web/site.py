"""Serves pages with their files and their events.

The pages run no foreign code, browsers store nothing of them, and no other site learns that one was
opened. ``streams.http_server`` decides which requests are answered.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec
from aiohttp import web

from streams.http_server import HEADERS, HttpServer
from streams.web.sessions import SessionCookie

T = TypeVar("T", bound=msgspec.Struct)

_STATIC = Path(__file__).with_name("static")
_RETRY = b"retry: 2000\n\n"
"""Makes a browser ask again two seconds after the last event."""


class PageEvent(NamedTuple):
    """One event for a page, and whether more events follow."""

    content: Any
    goes_on: bool


class Site(HttpServer):
    """A server of pages with the same sessions."""

    pages: ClassVar[tuple[str, ...]]
    """The names of the pages and of their files. The first page is at /, the others at their
    names."""
    cookie_name: ClassVar[str]
    every: ClassVar[float]
    """Seconds from one event to the next."""
    most_readers: ClassVar[int]
    """Maximum number of pages that receive events at the same time."""
    largest: ClassVar[int]
    """Maximum size of a request body, in bytes."""

    def __init__(
        self, address: str, certificate: ssl.SSLContext | None = None, *, page: str | None = None
    ) -> None:
        """Describe the server; ``start`` listens.

        Args:
            address: host:port to listen on; port 0 takes a free port.
            certificate: for TLS.
            page: the URL at which browsers reach the first page through a proxy.
        """
        super().__init__(address, page=page, certificate=certificate, largest=self.largest)
        self.cookie = SessionCookie(self.cookie_name, self.is_encrypted)
        self._readers: Counter[Hashable] = Counter()
        self._closing = asyncio.Event()
        for file in _STATIC.iterdir():
            if file.stem in ("common", *self.pages):
                path = f"/{file.name}"
                if file.suffix == ".html":
                    path = "/" if file.stem == self.pages[0] else f"/{file.stem}"
                self.get(path, partial(_file, file))

    async def stop(self) -> None:
        """End all events and stop listening."""
        self._closing.set()
        await super().stop()

    async def content(self, request: web.Request, kind: type[T]) -> T:
        """Return the body of a request."""
        try:
            return msgspec.json.decode(await request.read(), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise web.HTTPBadRequest(text=f"send {', '.join(kind.__struct_fields__)}") from None

    async def events(
        self, request: web.Request, holder: Hashable, most: int, next_event: Callable[[], PageEvent]
    ) -> web.StreamResponse:
        """Send events to a page (server-sent events), until it is closed or an event ends it.

        A page whose first event ends it takes no place.

        Args:
            holder: of the place: a session, a user, or all visitors without a login.
            most: maximum number of places of this holder.
            next_event: returns an event; called in any thread.
        """
        content, goes_on = await asyncio.to_thread(next_event)
        if not goes_on:
            return web.Response(body=_event(content) + _RETRY, content_type="text/event-stream")
        if self._readers[holder] >= most or self._readers.total() >= self.most_readers:
            raise web.HTTPServiceUnavailable(text="too many pages are open")
        answer = web.StreamResponse(
            headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        )
        self._readers[holder] += 1
        try:
            await answer.prepare(request)
            while goes_on and not self._closing.is_set():
                await answer.write(_event(content))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), self.every)
                content, goes_on = await asyncio.to_thread(next_event)
            await answer.write(_event(content) + _RETRY)
        except ConnectionResetError:
            pass  # the page was closed
        finally:
            self._readers[holder] -= 1
            if not self._readers[holder]:
                del self._readers[holder]
        return answer


def _event(content: Any) -> bytes:
    return b"data: " + msgspec.json.encode(content, enc_hook=str) + b"\n\n"


async def _file(path: Path, _: web.Request) -> web.FileResponse:
    return web.FileResponse(path)
