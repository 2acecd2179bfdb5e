"""Serves the dashboard for operators: one page, live and read-only.

    GET  /         the page, without any content of the service
    GET  /events   the state of the service, every second (server-sent events)
    POST /login    {"password": ...}: sets a cookie
    POST /logout

Requests change only sessions. On a loopback address every visitor sees the state of the service.
Runs, spending, rejected records and numbers of users are data about users: only a logged-in
operator sees them. On any other address only a logged-in operator sees anything.
"""

from __future__ import annotations

import ssl

import msgspec
from aiohttp import web

from streams.operations.watching import Watch
from streams.web.sessions import Sessions, TooManyTries
from streams.web.site import PageEvent, Site

EVERY = 1.0  # seconds
MOST_READERS = 64
MOST_OF_VISITORS = 32
"""Maximum number of pages without a login. The other places are for logged-in operators."""
MOST_OF_A_SESSION = 8
_LONGEST_PASSWORD = 4096
_VISITORS = "visitors"


class Dashboard(Site):
    """The dashboard's server."""

    def __init__(
        self,
        watch: Watch,
        sessions: Sessions,
        address: str,
        certificate: ssl.SSLContext | None = None,
        *,
        page: str | None = None,
    ) -> None:
        """Describe the server; ``start`` listens.

        Args:
            watch: collects the content of the page.
            sessions: of operators, who may see data about users.
            address: host:port to listen on; port 0 takes a free port.
            certificate: for TLS.
            page: the URL at which browsers reach the page through a proxy.
        """
        self._watch, self._sessions = watch, sessions
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
            return web.Response(status=400, text="send a password")
        try:
            token = self._sessions.enter(given.password[:_LONGEST_PASSWORD], request.remote or "")
        except TooManyTries as error:
            wait = {"Retry-After": str(int(error.wait) + 1)}
            return web.Response(status=429, text=str(error), headers=wait)
        if token is None:
            return web.Response(status=403, text="wrong password")
        return self.cookie.begin(web.Response(status=204), token)

    async def _logout(self, request: web.Request) -> web.Response:
        self._sessions.leave(self.cookie.of(request))
        return self.cookie.end(web.Response(status=204))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        token = self.cookie.of(request)
        if self._sessions.knows(token):
            holder, most = token, MOST_OF_A_SESSION
        elif self.is_local:
            holder, most = _VISITORS, MOST_OF_VISITORS
        else:
            return self.event(self._seen_by(token).content)
        return await self.events(request, holder, most, lambda: self._seen_by(token))

    def _seen_by(self, token: str) -> PageEvent:
        is_known = self._sessions.knows(token)
        sees_service = is_known or self.is_local
        seen = {
            "known": is_known,
            "service": self._watch.service() if sees_service else None,
            "people": self._watch.people() if is_known else None,
        }
        return PageEvent(seen, goes_on=sees_service)


class _Login(msgspec.Struct):
    password: str
