"""Serves one page, and to whoever comes with a link what is that user's own.

    GET  /         the page; it has nothing in it
    POST /enter    {"token": ...}: a cookie, for as long as the link counts
    POST /leave
    GET  /events   what is the owner's own, again and again (server-sent events)
    GET  /own      the same, once, as JSON; also with the token as `Authorization: Bearer ...`

The token of a link stands behind its #, which a browser keeps to itself; the page sends it in the
body of a request and takes it out of the address. So it is in no log, in no history of the browser
and in no Referer. The cookie is out of reach of scripts, and of other sites. Whom a request is
about is said by the session or the token alone: there is no other way to ask for a user.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from streams.portal.links import Claims, LinkKeys, UnusableLink
from streams.portal.sessions import Sessions
from streams.web.site import Site, Told

EVERY = 5.0  # seconds
_COOKIE = "turnstile-portal"
_LARGEST = 32 * 1024
_MOST_READERS = 512
_BEARER = "Bearer "


class Own(Protocol):
    """What is shown."""

    def told(self, claims: Claims) -> dict[str, Any]:
        """What is one user's own, and nobody else's."""


class Portal(Site):
    """One server."""

    def __init__(
        self,
        own: Own,
        keys: LinkKeys,
        address: str,
        certificate: ssl.SSLContext | None = None,
        *,
        page: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Describe it; ``start`` listens.

        Args:
            own: what is shown.
            keys: by which links are known.
            address: host:port to listen on; port 0 is any that is free.
            certificate: with which it is encrypted, if it is.
            page: where browsers find it, if that is at a proxy, which keeps the name of the host
                and may speak TLS.
            now: seconds since 1970.
        """
        self._own, self._keys, self._now = own, keys, now
        self._sessions = Sessions(now)
        super().__init__(
            "streams.portal",
            address,
            every=EVERY,
            most_readers=_MOST_READERS,
            largest=_LARGEST,
            name=urlsplit(page or "").hostname,
            certificate=certificate,
        )
        self._is_encrypted = certificate is not None or is_encrypted(page)
        self.post("/enter", self._enter)
        self.post("/leave", self._leave)
        self.get("/events", self._events)
        self.get("/own", self._once)

    async def _enter(self, request: web.Request) -> web.Response:
        try:
            token = msgspec.json.decode(await request.read(), type=_Entry).token
            claims = self._keys.read(token, self._now())
        except (msgspec.DecodeError, UnicodeDecodeError):
            return web.Response(status=400, text="give a token")
        except UnusableLink as error:
            return web.Response(status=403, text=str(error))
        secret, lasts = self._sessions.enter(claims)
        answer = web.Response(status=204)
        answer.set_cookie(
            _COOKIE,
            secret,
            max_age=lasts,
            httponly=True,
            samesite="Strict",
            secure=self._is_encrypted,
            path="/",
        )
        return answer

    async def _leave(self, request: web.Request) -> web.Response:
        self._sessions.leave(request.cookies.get(_COOKIE))
        answer = web.Response(status=204)
        answer.del_cookie(_COOKIE, path="/")
        return answer

    async def _events(self, request: web.Request) -> web.StreamResponse:
        secret = request.cookies.get(_COOKIE)

        def tell() -> Told:
            claims = self._sessions.claims_of(secret)
            if claims is None:
                return Told(None, goes_on=False)
            return Told(self._own.told(claims), goes_on=True)

        return await self.events(request, tell)

    async def _once(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization")
        try:
            if given is None:
                claims = self._sessions.claims_of(request.cookies.get(_COOKIE))
            else:
                claims = self._keys.read(given.removeprefix(_BEARER), self._now())
        except UnusableLink as error:
            return web.Response(status=403, text=str(error))
        if claims is None:
            return web.Response(status=403, text="come with a link")
        told = await asyncio.to_thread(self._own.told, claims)
        return web.Response(body=msgspec.json.encode(told), content_type="application/json")


def is_encrypted(page: str | None) -> bool:
    """Whether browsers come by TLS to an address."""
    return page is not None and urlsplit(page).scheme == "https"


class _Entry(msgspec.Struct):
    token: str
