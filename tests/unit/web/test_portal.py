"""A link opens the page of one user once, for one browser, until it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import msgspec
import pytest

from streams.config import ConfigurationError
from streams.web.links import Claims, LinkKeys, TokenKind, Visits
from streams.web.portal import MOST_OF_A_USER, Portal

USERS = ("ada-lovelace", "eve-polastri")
KEYS = LinkKeys("k" * 32, "turnstile.")
ENDS = 2_000_000_000


class Own:
    """Each user has a secret."""

    def content(self, claims: Claims) -> dict[str, Any]:
        return {"secret": f"of {claims.user}"}


class Clock:
    now = 1_900_000_000.0

    def __call__(self) -> float:
        return self.now


Ask = Callable[[aiohttp.ClientSession, str], Awaitable[None]]


def serve(
    ask: Ask, clock: Clock | None = None, *, file: Path | None = None, **options: Any
) -> None:
    async def asked(file: Path) -> None:
        visits = Visits(file)
        portal = Portal(Own(), KEYS, visits, "127.0.0.1:0", now=clock or Clock(), **options)
        await portal.start()
        try:
            async with browser() as session:
                await ask(session, portal.url)
        finally:
            await portal.stop()
            visits.close()

    with TemporaryDirectory() as folder:
        asyncio.run(asked(file or Path(folder) / "links.db"))


def browser() -> aiohttp.ClientSession:
    """A browser with cookies of its own."""
    # The host is an address, which has no domain.
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))


def token_of(user: str, **claims: Any) -> str:
    return KEYS.sign(Claims.new(user=user, ends=ENDS, **claims))


async def enter(session: aiohttp.ClientSession, url: str, token: str, **headers: str) -> int:
    async with session.post(f"{url}enter", json={"token": token}, headers=headers) as answer:
        return answer.status


async def own(session: aiohttp.ClientSession, url: str, **headers: str) -> tuple[int, bytes]:
    async with session.get(f"{url}own", headers=headers) as answer:
        return answer.status, await answer.read()


async def first(session: aiohttp.ClientSession, url: str, **headers: str) -> Any:
    async with session.get(f"{url}events", headers=headers) as answer:
        line = await answer.content.readline()
        return msgspec.json.decode(line.removeprefix(b"data: "))


async def leave(session: aiohttp.ClientSession, url: str) -> None:
    async with session.post(f"{url}leave") as answer:
        assert answer.status == 204


def test_a_link_is_exchanged_for_a_cookie_and_shows_its_user() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        assert (await own(session, url))[0] == 403
        assert await first(session, url) is None
        for user, other in (USERS, USERS[::-1]):
            assert await enter(session, url, token_of(user)) == 204
            assert await first(session, url) == {"secret": f"of {user}"}
            status, said = await own(session, url)
            assert (status, other.encode() in said) == (200, False)
        await leave(session, url)
        assert await first(session, url) is None

    serve(ask)


def test_a_link_opens_one_browser_and_works_there_again() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        token = token_of(USERS[0])
        assert await enter(session, url, token) == 204
        async with browser() as another:
            assert await enter(another, url, token) == 403
            assert not list(another.cookie_jar)
            assert (await own(another, url))[0] == 403
        assert await enter(session, url, token) == 204  # from its history or a bookmark
        assert (await own(session, url))[0] == 200

    serve(ask)


def test_a_link_that_was_left_opens_nothing_any_more() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        token = token_of(USERS[0])
        await enter(session, url, token)
        (cookie,) = session.cookie_jar
        await leave(session, url)
        assert await enter(session, url, token) == 403
        replayed = {"Cookie": f"{cookie.key}={cookie.value}"}
        assert (await own(session, url, **replayed))[0] == 403
        assert await first(session, url, **replayed) is None
        assert await enter(session, url, token_of(USERS[0])) == 204  # another link of this user

    serve(ask)


def test_opened_and_left_links_are_remembered_over_a_restart(tmp_path: Path) -> None:
    opened, left = token_of(USERS[0]), token_of(USERS[1])
    cookies: dict[str, str] = {}

    async def before(session: aiohttp.ClientSession, url: str) -> None:
        await enter(session, url, left)
        await leave(session, url)
        await enter(session, url, opened)
        cookies.update({cookie.key: cookie.value for cookie in session.cookie_jar})

    async def after(session: aiohttp.ClientSession, url: str) -> None:
        for token in (opened, left):
            assert await enter(session, url, token) == 403
        session.cookie_jar.update_cookies(cookies)
        assert await own(session, url) == (200, b'{"secret":"of ada-lovelace"}')

    file = tmp_path / "links.db"
    serve(before, file=file)
    serve(after, file=file)


def test_a_revoked_link_ends_in_the_middle_of_a_session(tmp_path: Path) -> None:
    file = tmp_path / "links.db"

    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        claims = Claims.new(user=USERS[0], ends=ENDS)
        await enter(session, url, KEYS.sign(claims))
        other = Visits(file)  # the command that revokes it is another process
        assert other.end(claims.id, ENDS)
        other.close()
        assert (await own(session, url))[0] == 403
        assert await enter(session, url, KEYS.sign(claims)) == 403

    serve(ask, file=file)


def test_a_link_is_no_session_and_a_session_is_no_link() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        token = token_of(USERS[0])
        await enter(session, url, token)
        (cookie,) = session.cookie_jar
        async with browser() as another:
            as_cookie = {"Cookie": f"{cookie.key}={token}"}
            assert (await own(another, url, **as_cookie))[0] == 403
            assert await enter(another, url, cookie.value) == 403
            # The key alone makes no session: its link has to be opened first.
            forged = KEYS.sign(Claims.new(user=USERS[0], ends=ENDS), TokenKind.SESSION)
            assert (await own(another, url, Cookie=f"{cookie.key}={forged}"))[0] == 403

    serve(ask)


def test_one_user_leaves_places_to_others() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        async with AsyncExitStack() as opened:

            async def is_told(page: aiohttp.ClientSession) -> bool:
                answer = await opened.enter_async_context(page.get(f"{url}events"))
                return answer.status == 200

            await enter(session, url, token_of(USERS[0]))
            assert all([await is_told(session) for _ in range(MOST_OF_A_USER)])
            await enter(session, url, token_of(USERS[0]))  # another link of this user
            assert not await is_told(session)
            another = await opened.enter_async_context(browser())
            await enter(another, url, token_of(USERS[1]))
            assert await is_told(another)

    serve(ask)


@pytest.mark.parametrize(
    "query", ["?user=eve-polastri", "?token=x", "?u=eve-polastri&dataset=d", "#eve-polastri"]
)
def test_there_is_no_other_way_to_ask_for_a_user(query: str) -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        await enter(session, url, token_of(USERS[0]))
        headers = {"X-User": USERS[1], "Cookie2": USERS[1]}
        async with session.get(f"{url}own{query}", headers=headers) as answer:
            assert await answer.json() == {"secret": f"of {USERS[0]}"}

    serve(ask)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"token": 5}', b"\xff", b'{"token": "\\ud800"}', b"x" * 40_000]
)
def test_an_odd_entry_is_refused(body: bytes) -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        async with session.post(f"{url}enter", data=body) as answer:
            assert answer.status in (400, 403, 413)

    serve(ask)


def test_neither_a_link_nor_a_session_outlives_its_end() -> None:
    clock = Clock()

    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        clock.now = ENDS - 60.0
        token = token_of(USERS[0])
        async with session.post(f"{url}enter", json={"token": token}) as answer:
            (cookie,) = answer.cookies.values()
        assert int(cookie["max-age"]) == 60
        clock.now = float(ENDS)
        for link in (token, token_of(USERS[0])):
            assert await enter(session, url, link) == 403
        replayed = {"Cookie": f"{cookie.key}={cookie.value}"}
        assert (await own(session, url, **replayed))[0] == 403
        assert await first(session, url, **replayed) is None

    serve(ask, clock)


@pytest.mark.parametrize("page", ["https://own.example/", "http://own.example/", None])
def test_the_cookie_is_out_of_reach_of_scripts_other_sites_and_other_ports(
    page: str | None,
) -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        async with session.post(f"{url}enter", json={"token": token_of(USERS[0])}) as answer:
            (cookie,) = answer.cookies.values()
        assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
        assert (cookie["path"], cookie["domain"]) == ("/", "")
        # Without TLS browsers accept no cookie of this prefix.
        is_encrypted = page == "https://own.example/"
        assert (cookie.key.startswith("__Host-"), bool(cookie["secure"])) == 2 * (is_encrypted,)

    serve(ask, page=page)


def test_nothing_foreign_runs_nothing_is_kept_and_nobody_is_told_where_one_was() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        await enter(session, url, token_of(USERS[0]))
        for path in ("", "portal.css", "portal.js", "portal.svg", "events", "own", "nowhere"):
            async with session.get(url + path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["Referrer-Policy"] == "no-referrer"
                assert answer.headers["Cache-Control"] == "no-store"
        async with session.get(url) as answer:
            page = await answer.text()
            assert not any(user in page for user in USERS)

    serve(ask)


def test_no_log_has_a_token_or_a_user(caplog: pytest.LogCaptureFixture) -> None:
    token = token_of(USERS[0])

    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        await enter(session, url, token)
        await enter(session, url, token + "x")
        for header in (f"Bearer {token}", f"Bearer {token * 20}"):
            await own(session, url, Authorization=header)
        await session.get(f"{url}nowhere?token={token}")

    caplog.set_level(logging.DEBUG)
    serve(ask)
    assert not any(text in caplog.text for text in (*USERS, token[:20]))


def test_links_that_have_ended_are_dropped_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "links.db"
    visits = Visits(file)
    user = "ada.lovelace@example.org"  # random ids do not contain it by chance
    ended, new = (Claims.new(user=user, ends=end) for end in (100, 200))
    assert visits.begin(ended, now=50.0)
    assert visits.begin(new, now=100.0)
    assert (visits.is_open(ended.id), visits.is_open(new.id)) == (False, True)
    visits.close()
    assert user.encode() not in file.read_bytes()
    assert file.stat().st_mode & 0o077 == 0


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, and long enough to be looked at " * 20)
    for path in (tmp_path, tmp_path / "nowhere" / "file", tmp_path / "text"):
        with pytest.raises(ConfigurationError):
            Visits(path)
