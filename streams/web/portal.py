"""Serves the portal: one page that shows a user with a link what was spent of the budget.

    GET  /         the page, without any content of a user
    POST /enter    {"token": ...}: exchanges a link for a cookie, once
    POST /leave    ends the session and its link
    GET  /events   the content of the session's user (server-sent events)

The token of a link follows its #, so no server and no Referer header receives it. The page sends
the token in the body of a request and removes it from the address. Browsers still store it in their
history, favicon database and saved sessions, so a link works for its first visit only. After that
the browser needs the cookie, which lasts until the link expires, its user leaves, or the operator
revokes it.

Only the session determines the user of a request.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable

import msgspec
from aiohttp import web

from streams.web.links import LONGEST_TOKEN, Claims, LinkKeys, TokenKind, UnusableLink, Visits
from streams.web.owner import Owners
from streams.web.site import PageEvent, Site

MOST_OF_A_USER = 8
"""Maximum number of pages of one user that receive events at the same time."""
_OPENED = (
    "this link was opened before, or it was revoked. Ask for another one where you got it, and say "
    "there if you did not open this one yourself"
)


class Portal(Site):
    """The portal's server."""

    pages = ("portal",)
    cookie_name = "turnstile-portal"
    every = 5.0
    most_readers = 512
    largest = LONGEST_TOKEN + 1024

    def __init__(
        self,
        owners: Owners,
        keys: LinkKeys,
        visits: Visits,
        address: str,
        certificate: ssl.SSLContext | None = None,
        *,
        page: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Describe the server, with the arguments of ``Site``; ``start`` listens."""
        self._owners, self._keys, self._visits, self._now = owners, keys, visits, now
        super().__init__(address, certificate, page=page)
        self.post("/enter", self._enter)
        self.post("/leave", self._leave)
        self.get("/events", self._events)

    async def _enter(self, request: web.Request) -> web.Response:
        token = (await self.content(request, _Entry)).token
        try:
            claims = self._keys.read(token, self._now())
        except UnusableLink as error:
            return web.Response(status=403, text=str(error))
        session = self._session_of(request)
        if session is not None and session.id == claims.id:
            return web.Response(status=204)  # this browser opened the link before
        if not self._visits.begin(claims, self._now()):
            return web.Response(status=403, text=_OPENED)
        lasts = max(0, int(claims.ends - self._now()))
        secret = self._keys.sign(claims, TokenKind.SESSION)
        return self.cookie.begin(web.Response(status=204), secret, lasts)

    async def _leave(self, request: web.Request) -> web.Response:
        session = self._session_of(request)
        if session is not None:
            self._visits.end(session.id, session.ends)
        return self.cookie.end(web.Response(status=204))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        session = self._session_of(request)
        holder = None if session is None else session.user

        def next_event() -> PageEvent:
            claims = self._session_of(request)
            content = None if claims is None else self._owners.content(claims)
            return PageEvent(content, goes_on=claims is not None)

        return await self.events(request, holder, MOST_OF_A_USER, next_event)

    def _session_of(self, request: web.Request) -> Claims | None:
        """Return the claims of the session of a request, in any thread; None without a session."""
        try:
            claims = self._keys.read(self.cookie.of(request), self._now(), TokenKind.SESSION)
        except UnusableLink:
            return None
        return claims if self._visits.is_open(claims.id) else None


class _Entry(msgspec.Struct):
    token: str
