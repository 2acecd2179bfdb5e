"""Serves pages with their files and their events.

The pages run no foreign code, browsers store nothing of them, and no other site learns that one was
opened. ``streams.http_server`` decides which requests are answered.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from importlib import resources
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from streams.http_server import HEADERS, Handler, HttpServer
from streams.web.sessions import SessionCookie

_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_RETRY = b"retry: 2000\n\n"
"""Makes a browser ask again two seconds after the last event."""


class PageEvent(NamedTuple):
    """One event for a page, and whether more events follow."""

    content: Any
    goes_on: bool


class Site(HttpServer):
    """A server of a page, and of further pages with the same sessions."""

    def __init__(
        self,
        name: str,
        address: str,
        *,
        cookie: str,
        every: float,
        most_readers: int,
        largest: int,
        page: str | None = None,
        certificate: ssl.SSLContext | None = None,
        further: Sequence[str] = (),
    ) -> None:
        """Describe the server; ``start`` listens.

        Args:
            name: of the page and its files in the folder ``static``.
            address: host:port to listen on; port 0 takes a free port.
            cookie: the name of the cookie of a session.
            every: seconds from one event to the next.
            most_readers: maximum number of pages that receive events at the same time.
            largest: maximum size of a request body, in bytes.
            page: the URL at which browsers reach the page through a proxy.
            certificate: for TLS.
            further: the names of further pages; each is at the path of its name.
        """
        super().__init__(address, page=page, certificate=certificate, largest=largest)
        self.cookie = SessionCookie(cookie, self.is_encrypted)
        self._every, self._most_readers = every, most_readers
        self._readers: Counter[Hashable] = Counter()
        self._closing = asyncio.Event()
        for file in resources.files("streams.web").joinpath("static").iterdir():
            part, _, kind = file.name.partition(".")
            if part in ("common", name, *further):
                path = f"/{file.name}"
                if kind == "html":
                    path = "/" if part == name else f"/{part}"
                self.get(path, _file(file.read_bytes(), _KINDS[kind]))

    async def stop(self) -> None:
        """End all events and stop listening."""
        self._closing.set()
        await super().stop()

    def event(self, content: Any) -> web.Response:
        """Return a single event, for a page that may see nothing else. It takes no place."""
        return web.Response(body=_event(content) + _RETRY, content_type="text/event-stream")

    async def events(
        self, request: web.Request, holder: Hashable, most: int, next_event: Callable[[], PageEvent]
    ) -> web.StreamResponse:
        """Send events to a page (server-sent events), until it is closed or an event ends it.

        Args:
            request: of the page.
            holder: of the place: a session, a user, or all visitors without a login.
            most: maximum number of places of this holder.
            next_event: returns an event; called in any thread.
        """
        if self._readers[holder] >= most or self._readers.total() >= self._most_readers:
            raise web.HTTPServiceUnavailable(text="too many pages are open")
        answer = web.StreamResponse(
            headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        )
        self._readers[holder] += 1
        try:
            await answer.prepare(request)
            while not self._closing.is_set():
                content, goes_on = await asyncio.to_thread(next_event)
                await answer.write(_event(content))
                if not goes_on:
                    await answer.write(_RETRY)
                    break
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), self._every)
        except ConnectionResetError:
            pass  # the page was closed
        finally:
            self._readers[holder] -= 1
            if not self._readers[holder]:
                del self._readers[holder]
        return answer


def _event(content: Any) -> bytes:
    return b"data: " + msgspec.json.encode(content, enc_hook=str) + b"\n\n"


def _file(content: bytes, kind: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind, charset="utf-8")

    return answer
