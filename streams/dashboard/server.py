"""Serves one page, and what it shows, to whoever may see it.

    GET  /         the page; it has nothing in it
    GET  /events   what is to be seen, every second (server-sent events)
    POST /login    {"password": ...}: a cookie
    POST /logout

Nothing here changes anything but sessions. On a loopback address everybody on this machine sees how
the service is; runs, spending and rejects are data about people, and for whoever has logged in. On
any other address everything is.
"""

from __future__ import annotations

import ssl
from typing import Any, Protocol

import msgspec
from aiohttp import web

from streams.dashboard.sessions import Sessions, TooManyTries
from streams.web.site import Site, Told

EVERY = 1.0  # seconds
_COOKIE = "turnstile"
_LONGEST_PASSWORD = 4096
_MOST_READERS = 64


class Watched(Protocol):
    """What is shown."""

    def service(self) -> dict[str, Any]:
        """How the service is: nothing of it is about people."""

    def people(self) -> dict[str, Any]:
        """Runs, what users have spent, and what was refused."""


class Dashboard(Site):
    """One server."""

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
        self._watched, self._sessions = watched, sessions
        super().__init__(
            "streams.dashboard",
            address,
            every=EVERY,
            most_readers=_MOST_READERS,
            largest=2 * _LONGEST_PASSWORD,
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
            secure=self.is_encrypted,
            path="/",
        )
        return answer

    async def _logout(self, request: web.Request) -> web.Response:
        self._sessions.leave(request.cookies.get(_COOKIE))
        answer = web.Response(status=204)
        answer.del_cookie(_COOKIE, path="/")
        return answer

    async def _events(self, request: web.Request) -> web.StreamResponse:
        token = request.cookies.get(_COOKIE)
        return await self.events(request, lambda: self._seen_by(token))

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
