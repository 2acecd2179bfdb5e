"""Serves one page, and what it shows, to whoever may see it.

    GET  /         the page; it has nothing in it
    GET  /events   what is to be seen, every second (server-sent events)
    POST /login    {"password": ...}: a cookie
    POST /logout

Nothing here changes anything but sessions. On a loopback address everybody on this machine sees how
the service is; runs, spending and rejects are data about people, and for whoever has logged in. On
any other address everything is. A request under a name that is not this server's is refused: a page
of somebody else's could have had its own name resolved to here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import resources
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from streams.dashboard.sessions import Sessions, TooManyTries

EVERY = 1.0  # seconds
_COOKIE = "turnstile"
_STATIC = {
    "index.html": "text/html",
    "dashboard.css": "text/css",
    "dashboard.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
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
_LONGEST_PASSWORD = 4096
_MOST_READERS = 64

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Watched(Protocol):
    """What is shown."""

    def service(self) -> dict[str, Any]:
        """How the service is: nothing of it is about people."""

    def people(self) -> dict[str, Any]:
        """Runs, what users have spent, and what was refused."""


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches an address."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


class Dashboard:
    """One server.

    Attributes:
        url: where it is, once it was started.
    """

    def __init__(
        self,
        watched: Watched,
        sessions: Sessions,
        address: str,
        certificate: ssl.SSLContext | None = None,
    ) -> None:
        """Describe it; ``start`` listens.

        Args:
            watched: what is shown.
            sessions: who may see what is about people.
            address: host:port to listen on; port 0 is any that is free.
            certificate: with which it is encrypted, if it is.
        """
        host, _, port = address.rpartition(":")
        self._watched, self._sessions = watched, sessions
        self._host, self._port = host, int(port)
        self._is_local = is_loopback(host)
        self._certificate = certificate
        self._readers = 0
        self._closing = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address is taken, or is not of this machine.
        """
        app = web.Application(middlewares=[self._guard], client_max_size=2 * _LONGEST_PASSWORD)
        app.router.add_get("/events", self._events)
        app.router.add_post("/login", self._login)
        app.router.add_post("/logout", self._logout)
        for name in _STATIC:
            app.router.add_get("/" if name == "index.html" else f"/{name}", _file(name))
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=1.0
        )
        await self._runner.setup()
        site = web.TCPSite(
            self._runner,
            self._host.strip("[]"),
            self._port,
            ssl_context=self._certificate,
        )
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http{'s' if self._certificate else ''}://{self._host}:{self._port}/"

    async def stop(self) -> None:
        """Listen no more."""
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._is_local and not is_loopback(_name_of(request.headers.get("Host", ""))):
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

    async def _login(self, request: web.Request) -> web.Response:
        try:
            given = msgspec.json.decode(await request.read(), type=_Login)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return web.Response(status=400, text="give a password")
        try:
            token = self._sessions.enter(given.password[:_LONGEST_PASSWORD])
        except TooManyTries as error:
            wait = {"Retry-After": str(int(error.wait) + 1)}
            return web.Response(status=429, text=str(error), headers=wait)
        if token is None:
            return web.Response(status=403, text="that is not the password")
        answer = web.Response(status=204)
        answer.set_cookie(
            _COOKIE,
            token,
            httponly=True,
            samesite="Strict",
            secure=self._certificate is not None,
            path="/",
        )
        return answer

    async def _logout(self, request: web.Request) -> web.Response:
        self._sessions.leave(request.cookies.get(_COOKIE))
        answer = web.Response(status=204)
        answer.del_cookie(_COOKIE, path="/")
        return answer

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._readers >= _MOST_READERS:
            raise web.HTTPServiceUnavailable(text="too many pages are open")
        answer = web.StreamResponse(
            headers={**_HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        )
        self._readers += 1
        try:
            await answer.prepare(request)
            while not self._closing.is_set():
                # Each time anew: a session ends while its page is open.
                seen = await asyncio.to_thread(self._seen_by, request.cookies.get(_COOKIE))
                await answer.write(b"data: " + msgspec.json.encode(seen, enc_hook=str) + b"\n\n")
                if seen["service"] is None:  # nobody who may see nothing takes up a place
                    await answer.write(b"retry: 2000\n\n")
                    break
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), EVERY)
        except ConnectionResetError:
            pass  # the page was closed
        finally:
            self._readers -= 1
        return answer

    def _seen_by(self, token: str | None) -> dict[str, Any]:
        is_known = self._sessions.knows(token)
        return {
            "known": is_known,
            "service": self._watched.service() if is_known or self._is_local else None,
            "people": self._watched.people() if is_known else None,
        }


class _Login(msgspec.Struct):
    password: str


def _file(name: str) -> Handler:
    content = resources.files("streams.dashboard").joinpath("static", name).read_bytes()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=_STATIC[name], charset="utf-8")

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
