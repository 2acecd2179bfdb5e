"""Serves the dashboard for operators: two pages, live and read-only.

    GET  /                 the page about the service, without any content of the service
    GET  /events           the state of the service, every second (server-sent events)
    GET  /answers          the page with the private answers, without any answer
    GET  /answers-events   the queries and the numbers of their answers, every second
    GET  /answers-of       ?dataset=...&query=...: the answers to one query
    POST /login            {"password": ...}: sets a cookie
    POST /logout

Requests change only sessions. On a loopback address every visitor sees the state of the service and
the answers. Runs, rejected records and numbers of users are data about users: only a
logged-in operator sees them. On any other address only a logged-in operator sees anything.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial

import msgspec
from aiohttp import web

from streams.web.answer_reader import AnswerReader
from streams.web.live_facts import ServiceFacts
from streams.web.sessions import Sessions, TooManyTries
from streams.web.site import PageEvent, Site

MOST_OF_VISITORS = 32
"""Maximum number of pages without a login. The other places are for logged-in operators."""
MOST_OF_A_SESSION = 8
_VISITORS = "visitors"


class Dashboard(Site):
    """The dashboard's server."""

    pages = "dashboard", "answers"
    cookie_name = "turnstile"
    every = 1.0
    most_readers = 64
    largest = 8192

    def __init__(
        self,
        facts: ServiceFacts,
        answers: AnswerReader,
        sessions: Sessions,
        address: str,
        certificate: ssl.SSLContext | None = None,
        *,
        page: str | None = None,
    ) -> None:
        """Describe the server, with the arguments of ``Site``; ``start`` listens."""
        self._facts, self._answers, self._sessions = facts, answers, sessions
        super().__init__(address, certificate, page=page)
        self.get("/events", partial(self._sent, self._seen_by))
        self.get("/answers-events", partial(self._sent, self._answers_seen_by))
        self.get("/answers-of", self._answers_of)
        self.post("/login", self._login)
        self.post("/logout", self._logout)

    async def _login(self, request: web.Request) -> web.Response:
        given = (await self.content(request, _Login)).password
        try:
            token = self._sessions.enter(given, request.remote or "")
        except TooManyTries as error:
            wait = {"Retry-After": str(int(error.wait) + 1)}
            return web.Response(status=429, text=str(error), headers=wait)
        if token is None:
            return web.Response(status=403, text="wrong password")
        return self.cookie.begin(web.Response(status=204), token)

    async def _logout(self, request: web.Request) -> web.Response:
        self._sessions.leave(self.cookie.of(request))
        return self.cookie.end(web.Response(status=204))

    async def _answers_of(self, request: web.Request) -> web.Response:
        if not self._sees_service(self.cookie.of(request)):
            raise web.HTTPForbidden(text="log in first")
        wanted = request.query.get("dataset", ""), request.query.get("query", "")
        found = await asyncio.to_thread(self._answers.answers_to, *wanted)
        if found is None:
            raise web.HTTPNotFound(text="this query has no answer")
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    async def _sent(
        self, seen_by: Callable[[str], PageEvent], request: web.Request
    ) -> web.StreamResponse:
        """Send events to a page, within the number of pages that its visitor may open."""
        token, holder, most = self.cookie.of(request), _VISITORS, MOST_OF_VISITORS
        if self._sessions.knows(token):
            holder, most = token, MOST_OF_A_SESSION
        return await self.events(request, holder, most, lambda: seen_by(token))

    def _sees_service(self, token: str) -> bool:
        return self.is_local or self._sessions.knows(token)

    def _seen_by(self, token: str) -> PageEvent:
        is_known, sees_service = self._sessions.knows(token), self._sees_service(token)
        seen = {
            "known": is_known,
            "service": self._facts.service() if sees_service else None,
            "people": self._facts.people() if is_known else None,
        }
        return PageEvent(seen, goes_on=sees_service)

    def _answers_seen_by(self, token: str) -> PageEvent:
        sees_service = self._sees_service(token)
        seen = {"answers": self._answers.overview() if sees_service else None}
        return PageEvent(seen, goes_on=sees_service)


class _Login(msgspec.Struct):
    password: str
