"""Serves the dashboard: one page, and what it shows to whom.

    GET  /         the page, without any content of the service
    GET  /events   the state of the service, every second (server-sent events)
    POST /login    {"password": ...}: sets a cookie
    POST /logout

Requests change sessions and nothing else. On a loopback address everybody on this machine sees the
state of the service. Runs, spending, rejected records and numbers of users are data about users:
only a logged-in operator sees them. On any other address only a logged-in operator sees anything.
"""

from __future__ import annotations

import ssl
from typing import Any, Protocol

import msgspec
from aiohttp import web

from streams.web.sessions import Sessions, TooManyTries
from streams.web.site import Site, Told

EVERY = 1.0  # seconds
MOST_READERS = 64
MOST_OF_VISITORS = 32
"""Pages without a login. The other places are for operators who have logged in."""
MOST_OF_A_SESSION = 8
_LONGEST_PASSWORD = 4096
_VISITORS = "visitors"


class Watched(Protocol):
    """What the dashboard shows."""

    def service(self) -> dict[str, Any]:
        """Return the state of the service, without data about users."""

    def people(self) -> dict[str, Any]:
        """Return data about users: their numbers, runs, spending and rejected records."""


class Dashboard(Site):
    """One server."""

    def __init__(
        self,
        watched: Watched,
        sessions: Sessions,
        address: str,
        certificate: ssl.SSLContext | None = None,
        *,
        page: str | None = None,
    ) -> None:
        """Describe the server; ``start`` listens.

        Args:
            watched: what the page shows.
            sessions: of operators, who may see data about users.
            address: host:port to listen on; port 0 takes a free port.
            certificate: for TLS.
            page: the URL at which browsers reach the page through a proxy.
        """
        self._watched, self._sessions = watched, sessions
        super().__init__(
            "dashboard",
            address,
            cookie="turnstile",
            every=EVERY,
            most_readers=MOST_READERS,
            largest=2 * _LONGEST_PASSWORD,
            page=page,
            certificate=certificate,
        )
        self.get("/events", self._events)
        self.post("/login", self._login)
        self.post("/logout", self._logout)

    async def _login(self, request: web.Request) -> web.Response:
        try:
            given = msgspec.json.decode(await request.read(), type=_Login)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return web.Response(status=400, text="give a password")
        try:
            token = self._sessions.enter(given.password[:_LONGEST_PASSWORD], request.remote or "")
        except TooManyTries as error:
            wait = {"Retry-After": str(int(error.wait) + 1)}
            return web.Response(status=429, text=str(error), headers=wait)
        if token is None:
            return web.Response(status=403, text="that is not the password")
        return self.begin_session(web.Response(status=204), token)

    async def _logout(self, request: web.Request) -> web.Response:
        self._sessions.leave(request.cookies.get(self.cookie))
        return self.end_session(web.Response(status=204))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        token = request.cookies.get(self.cookie)
        if token is not None and self._sessions.knows(token):
            holder, most = token, MOST_OF_A_SESSION
        elif self.is_local:
            holder, most = _VISITORS, MOST_OF_VISITORS
        else:
            return self.event(self._seen_by(None).content)
        return await self.events(request, holder, most, lambda: self._seen_by(token))

    def _seen_by(self, token: str | None) -> Told:
        is_known = self._sessions.knows(token)
        sees_service = is_known or self.is_local
        seen = {
            "known": is_known,
            "service": self._watched.service() if sees_service else None,
            "people": self._watched.people() if is_known else None,
        }
        return Told(seen, goes_on=sees_service)


class _Login(msgspec.Struct):
    password: str
