"""An HTTP server that answers only under its own name and keeps requests out of every log.

On a loopback address the server refuses a request whose ``Host`` header names another machine.
Otherwise the page of another site could let its own name resolve to this address and read the
answers (DNS rebinding).

Requests may contain tokens and ids of users. The server therefore logs no request, not even one
that it cannot parse, and bounds the size of each. Every response has the security headers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ClassVar
from urllib.parse import urlsplit

from aiohttp import web

from streams.config import failure_of

logger = logging.getLogger("turnstile.http")

LONGEST_LINE = 2048
"""Bytes of a request line."""
LONGEST_FIELD = 8190
"""Bytes of a header field. A browser sends the cookies of all ports of a host in one field."""
MOST_FIELDS = 64
HEADERS = {
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
    "Server": "turnstile",
}
_SILENT = logging.Logger("nothing of requests is logged", level=logging.CRITICAL + 1)
"""Not from ``getLogger``: a configuration of logging cannot enable it."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """One listening address with its routes.

    Attributes:
        is_local: whether only this machine can reach the server, also through a proxy.
        is_encrypted: whether browsers reach the server over TLS, at a proxy perhaps.
        port: on which it listens, after ``start``.
        url: the address to open, after ``start``.
    """

    gives_up: ClassVar[bool] = True
    """True if a request ends with its connection: a page that was closed gives its place back."""

    def __init__(
        self,
        address: str,
        *,
        page: str | None = None,
        certificate: ssl.SSLContext | None = None,
        largest: int = 1024,
    ) -> None:
        """Describe the server; ``start`` listens.

        Args:
            address: host:port to listen on; port 0 takes a free port.
            page: the URL at which browsers reach the server through a proxy. The proxy has to pass
                the ``Host`` header on.
            certificate: for TLS.
            largest: bytes of the body of a request.
        """
        host, _, port = address.rpartition(":")
        self._host, self.port = host, int(port)
        self._name = urlsplit(page or "").hostname
        self._certificate = certificate
        self.is_local = is_loopback(host) and page is None
        self.is_encrypted = certificate is not None or is_https(page)
        self.url = ""
        self._app = web.Application(middlewares=[self._guard], client_max_size=largest)
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None

    def get(self, path: str, handler: Handler) -> None:
        """Answer GET requests at a path."""
        self._app.router.add_get(path, handler)

    def post(self, path: str, handler: Handler) -> None:
        """Answer POST requests at a path, unless the page of another site sends them."""
        self._app.router.add_post(path, handler)

    def describe(self, error: web.Response) -> None:
        """Give a response to a request that failed another body than text; does nothing here."""

    async def start(self) -> None:
        """Listen, or raise ``OSError``: the address is in use, or not of this machine."""
        self._runner = web.AppRunner(
            self._app,
            handle_signals=False,
            shutdown_timeout=1.0,
            handler_cancellation=self.gives_up,
        )
        await self._runner.setup()
        server, loop = self._runner.server, asyncio.get_running_loop()
        assert server is not None

        def connected() -> _Connection:
            return _Connection(
                server,
                loop=loop,
                logger=_SILENT,
                access_log=_SILENT,
                max_line_size=LONGEST_LINE,
                max_field_size=LONGEST_FIELD,
                max_headers=MOST_FIELDS,
            )

        self._listening = await loop.create_server(
            connected, self._host.strip("[]"), self.port, ssl=self._certificate
        )
        self.port = self._listening.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self._certificate else ''}://{self._host}:{self.port}/"

    async def stop(self) -> None:
        """Close the listening socket and all connections."""
        if self._listening is not None:
            self._listening.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not self._is_known_as(_name_of(request.headers.get("Host", ""))):
                raise web.HTTPForbidden(text="this server is not known by that name")
            if request.method == "POST" and not _is_own(request):
                raise web.HTTPForbidden(text="the page of another site sent this")
            answer = await handler(request)
        except web.HTTPException as error:
            self.describe(error)
            error.headers.update(HEADERS)
            raise
        except Exception as error:
            is_gone = isinstance(error, ConnectionResetError) and request.transport is None
            if not is_gone:
                logger.error("a request failed: %s", failure_of(error))
            failed = web.Response(status=500, text="this failed", headers=HEADERS)
            self.describe(failed)
            return failed
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    def _is_known_as(self, name: str) -> bool:
        return not is_loopback(self._host) or is_loopback(name) or name == self._name


class _Connection(web.RequestHandler):
    """A connection of a browser or another client."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse what is no request, without repeating any of it."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        answer = web.Response(status=status, text="this is no request", headers=HEADERS)
        answer.force_close()
        return answer


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


def is_https(page: str | None) -> bool:
    """Return whether browsers reach a URL over TLS."""
    return page is not None and urlsplit(page).scheme == "https"


def _name_of(host: str) -> str:
    """Return the name in a ``Host`` header, without the port."""
    with suppress(ValueError):
        return urlsplit(f"//{host}").hostname or ""
    return ""


def _is_own(request: web.Request) -> bool:
    """Return whether a page of this server sent a request, or a client that is no browser."""
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("Host")
