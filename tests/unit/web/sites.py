"""The two sites on a loopback address, and a browser that asks them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import msgspec

from streams.config import Config
from streams.web.answer_reader import AnswerReader
from streams.web.dashboard import Dashboard
from streams.web.links import Claims, LinkKeys, Visits
from streams.web.portal import Portal
from streams.web.sessions import Sessions
from streams.web.site import Site
from tests.unit.answerer.published import answer

PASSWORD = "correct horse"
SECRET = "eve-was-halted"
USERS = ("ada-lovelace", "eve-polastri")
KEYS = LinkKeys("k" * 32, "turnstile.")
ENDS = 2_000_000_000


class Facts:
    """A service with one thing to hide."""

    def service(self) -> dict[str, Any]:
        return {"alarms": []}

    def people(self) -> dict[str, Any]:
        return {"runs": [SECRET]}


class Own:
    """Each user has a secret."""

    def content(self, claims: Claims) -> dict[str, Any]:
        return {"secret": f"of {claims.user}"}


class Clock:
    now = 1_900_000_000.0

    def __call__(self) -> float:
        return self.now


class Browser:
    """A browser with cookies of its own, and the site that it asks."""

    def __init__(self, url: str) -> None:
        self.url = url
        # The host is an address, which has no domain.
        self.session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def __aenter__(self) -> Browser:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    @property
    def cookies(self) -> dict[str, str]:
        return {cookie.key: cookie.value for cookie in self.session.cookie_jar}

    async def get(self, path: str = "", **headers: str) -> tuple[int, str]:
        """Return the status and the content of a path; of events, the first one."""
        async with self.session.get(self.url + path, headers=headers) as found:
            read = found.content.readline() if "events" in path else found.read()
            return found.status, (await read).decode()

    async def event(self, path: str = "events", **headers: str) -> Any:
        """Return the first event of a path."""
        _, line = await self.get(path, **headers)
        return msgspec.json.decode(line.removeprefix("data: "))

    async def post(self, path: str, content: Any = None, **headers: str) -> int:
        """Return the status."""
        body = content if isinstance(content, bytes) else msgspec.json.encode(content)
        async with self.session.post(self.url + path, data=body, headers=headers) as found:
            return found.status

    async def is_shown(self, opened: AsyncExitStack) -> bool:
        """Open one more page, which stays open, and return whether it is sent events."""
        asked = self.session.get(f"{self.url}events")
        return (await opened.enter_async_context(asked)).status == 200

    async def login(self, password: str = PASSWORD, **headers: str) -> int:
        return await self.post("login", {"password": password}, **headers)

    async def enter(self, token: str) -> int:
        return await self.post("enter", {"token": token})


def token_of(user: str = USERS[0]) -> str:
    return KEYS.sign(Claims.new(user=user, ends=ENDS))


@asynccontextmanager
async def _asked(site: Site) -> AsyncIterator[Browser]:
    await site.start()
    try:
        async with Browser(site.url) as browser:
            yield browser
    finally:
        await site.stop()


@asynccontextmanager
async def dashboard(
    *, page: str | None = None, answers: AnswerReader | None = None
) -> AsyncIterator[Browser]:
    """Serve a dashboard, which browsers may reach at a ``page`` of a proxy."""
    if answers is None:
        answers = AnswerReader(Config())
        answers.add(answer(0, 12.5))
    site = Dashboard(Facts(), answers, Sessions(PASSWORD), "127.0.0.1:0", page=page)
    async with _asked(site) as browser:
        yield browser


@asynccontextmanager
async def portal(
    *, page: str | None = None, clock: Clock | None = None, file: Path | None = None
) -> AsyncIterator[Browser]:
    """Serve a portal, whose opened links are in a file."""
    with TemporaryDirectory() as folder:
        visits = Visits(file or Path(folder) / "links.db")
        site = Portal(Own(), KEYS, visits, "127.0.0.1:0", page=page, now=clock or Clock())
        async with _asked(site) as browser:
            yield browser
        visits.close()
