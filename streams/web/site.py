"""Serves one page with its files and its events.

Nothing foreign runs on the page, browsers keep nothing of it, and no other site learns that it was
open. ``streams.http_server`` decides which requests are answered.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from importlib import resources
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from streams.http_server import HEADERS, Handler, HttpServer

_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_AGAIN = b"retry: 2000\n\n"
"""When a browser asks again after the last event."""


class Told(NamedTuple):
    """One event for a page, and whether more events follow."""

    content: Any
    goes_on: bool


class Site(HttpServer):
    """A server of one page."""

    def __init__(
        self,
        pages: str,
        address: str,
        *,
        cookie: str,
        every: float,
        most_readers: int,
        largest: int,
        page: str | None = None,
        certificate: ssl.SSLContext | None = None,
    ) -> None:
        """Describe the server; ``start`` listens.

        Args:
            pages: the folder in ``static`` with the page, index.html, and its files.
            address: host:port to listen on; port 0 takes a free port.
            cookie: the name of the cookie of a session.
            every: seconds from one event to the next.
            most_readers: pages that receive events at the same time.
            largest: bytes of the body of a request.
            page: the URL at which browsers reach the page through a proxy.
            certificate: for TLS.
        """
        super().__init__(address, page=page, certificate=certificate, largest=largest)
        # Browsers take a cookie with this prefix over TLS only, and from this host only. A plain
        # cookie goes to all ports of the host, and any of them can set it.
        self.cookie = f"__Host-{cookie}" if self.is_encrypted else cookie
        self._every, self._most_readers = every, most_readers
        self._readers: Counter[Hashable] = Counter()
        self._closing = asyncio.Event()
        for file in resources.files("streams.web").joinpath("static", pages).iterdir():
            path = "/" if file.name == "index.html" else f"/{file.name}"
            self.get(path, _file(file.read_bytes(), _KINDS[file.name.rpartition(".")[2]]))

    async def stop(self) -> None:
        """End all events and stop listening."""
        self._closing.set()
        await super().stop()

    def begin_session(
        self, answer: web.Response, secret: str, lasts: int | None = None
    ) -> web.Response:
        """Give a browser the cookie of a session.

        Args:
            answer: to the browser.
            secret: the value.
            lasts: seconds; None until the browser is closed.
        """
        answer.set_cookie(
            self.cookie,
            secret,
            max_age=lasts,
            httponly=True,
            samesite="Strict",
            secure=self.is_encrypted,
            path="/",
        )
        return answer

    def end_session(self, answer: web.Response) -> web.Response:
        """Take the cookie of a session from a browser."""
        answer.del_cookie(
            self.cookie, httponly=True, samesite="Strict", secure=self.is_encrypted, path="/"
        )
        return answer

    def event(self, content: Any) -> web.Response:
        """Return a single event, for a page that may see no more. It takes no place."""
        return web.Response(body=_event(content) + _AGAIN, content_type="text/event-stream")

    async def events(
        self, request: web.Request, holder: Hashable, most: int, tell: Callable[[], Told]
    ) -> web.StreamResponse:
        """Send events to a page (server-sent events), until it is closed or ``tell`` ends it.

        Args:
            request: of the page.
            holder: takes the place: a session, a user, or all visitors without a login.
            most: places that this holder may have at the same time.
            tell: returns each event, in any thread.
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
                content, goes_on = await asyncio.to_thread(tell)
                await answer.write(_event(content))
                if not goes_on:
                    await answer.write(_AGAIN)
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
