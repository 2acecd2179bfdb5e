"""Serves one page with its files and its events, and refuses what no page of its own sends.

A request under a name that is not this server's is refused on a loopback address: a page of
somebody else's could have had its own name resolved to here. What is sent by another page is
refused as well. Nothing foreign runs on a page, nothing of it is kept, and no other site learns
that it was open.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Told(NamedTuple):
    """What a page is told, and whether it is told more."""

    content: Any
    goes_on: bool


class Site:
    """One server.

    Attributes:
        is_local: whether nobody but this machine reaches it.
        is_encrypted: whether it speaks TLS.
        url: where it is, once it was started.
    """

    def __init__(
        self,
        package: str,
        address: str,
        *,
        every: float,
        most_readers: int,
        largest: int,
        name: str | None = None,
        certificate: ssl.SSLContext | None = None,
    ) -> None:
        """Describe it; ``start`` listens.

        Args:
            package: whose folder ``static`` has the page, index.html, and its files.
            address: host:port to listen on; port 0 is any that is free.
            every: seconds from one event to the next.
            most_readers: pages that are told events at once.
            largest: bytes of a request.
            name: of the host, as browsers know it that come by a proxy.
            certificate: with which it is encrypted, if it is.
        """
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._certificate = certificate
        self._name = name
        self._every, self._most_readers = every, most_readers
        self.is_local, self.is_encrypted = is_loopback(host), certificate is not None
        self._readers = 0
        self._closing = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._app = web.Application(middlewares=[self._guard], client_max_size=largest)
        for file in resources.files(package).joinpath("static").iterdir():
            path = "/" if file.name == "index.html" else f"/{file.name}"
            self.get(path, _file(file.read_bytes(), _KINDS[file.name.rpartition(".")[2]]))
        self.url = ""

    def get(self, path: str, handler: Handler) -> None:
        """Answer what is asked for at a path."""
        self._app.router.add_get(path, handler)

    def post(self, path: str, handler: Handler) -> None:
        """Answer what is sent to a path."""
        self._app.router.add_post(path, handler)

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address is taken, or is not of this machine.
        """
        # No log of requests: it would say who looks.
        self._runner = web.AppRunner(
            self._app, access_log=None, handle_signals=False, shutdown_timeout=1.0
        )
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, self._host.strip("[]"), self._port, ssl_context=self._certificate
        )
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http{'s' if self._certificate else ''}://{self._host}:{self._port}/"

    async def stop(self) -> None:
        """Listen no more."""
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def events(self, request: web.Request, tell: Callable[[], Told]) -> web.StreamResponse:
        """Tell a page again and again (server-sent events), until it is closed or is told no more.

        Args:
            request: of the page.
            tell: asked each time anew, by any thread: a session ends while its page is open.
        """
        if self._readers >= self._most_readers:
            raise web.HTTPServiceUnavailable(text="too many pages are open")
        answer = web.StreamResponse(
            headers={**_HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        )
        self._readers += 1
        try:
            await answer.prepare(request)
            while not self._closing.is_set():
                content, goes_on = await asyncio.to_thread(tell)
                await answer.write(b"data: " + msgspec.json.encode(content, enc_hook=str) + b"\n\n")
                if not goes_on:  # nobody who may see nothing takes up a place
                    await answer.write(b"retry: 2000\n\n")
                    break
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), self._every)
        except ConnectionResetError:
            pass  # the page was closed
        finally:
            self._readers -= 1
        return answer

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._is_known_as(_name_of(request.headers.get("Host", ""))):
            raise web.HTTPForbidden(text="this server is not known by that name", headers=_HEADERS)
        if request.method == "POST" and not _is_own(request):
            raise web.HTTPForbidden(text="this was sent by another page", headers=_HEADERS)
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            error.headers.update(_HEADERS)
            raise
        if not answer.prepared:
            answer.headers.update(_HEADERS)
        return answer

    def _is_known_as(self, name: str) -> bool:
        return not self.is_local or is_loopback(name) or name == self._name


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches an address."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


def _file(content: bytes, kind: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind, charset="utf-8")

    return answer


def _name_of(host: str) -> str:
    """The name without the port."""
    with suppress(ValueError):
        return urlsplit(f"//{host}").hostname or ""
    return ""


def _is_own(request: web.Request) -> bool:
    """Whether a page of this server sent it, or nobody's page."""
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("Host")
