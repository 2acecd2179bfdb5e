"""Whoever comes with a link sees one user, and nobody else anything, however it is asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import pytest

from streams.portal.links import Claims, LinkKeys
from streams.portal.server import Portal
from streams.portal.sessions import Sessions

USERS = ("ada-lovelace", "eve-polastri")
KEYS = LinkKeys("k" * 32, "turnstile.")
ENDS = 2_000_000_000


class Own:
    """Each user has a secret."""

    def told(self, claims: Claims) -> dict[str, Any]:
        return {"secret": f"of {claims.user}"}


class Clock:
    now = 1_900_000_000.0

    def __call__(self) -> float:
        return self.now


Ask = Callable[[aiohttp.ClientSession, str], Awaitable[None]]


def serve(ask: Ask, clock: Clock | None = None, **options: Any) -> None:
    async def asked() -> None:
        portal = Portal(Own(), KEYS, "127.0.0.1:0", now=clock or Clock(), **options)
        await portal.start()
        try:
            jar = aiohttp.CookieJar(unsafe=True)  # it is an address, which has no domain
            async with aiohttp.ClientSession(cookie_jar=jar) as session:
                await ask(session, portal.url)
        finally:
            await portal.stop()

    asyncio.run(asked())


def token_of(user: str) -> str:
    return KEYS.sign(Claims(user=user, ends=ENDS))


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


def test_a_link_is_exchanged_for_a_cookie_and_shows_its_user() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        assert (await own(session, url))[0] == 403
        assert await first(session, url) is None
        for user, other in (USERS, USERS[::-1]):
            assert await enter(session, url, token_of(user)) == 204
            assert await first(session, url) == {"secret": f"of {user}"}
            status, said = await own(session, url)
            assert (status, other.encode() in said) == (200, False)
        await (await session.post(f"{url}leave")).release()
        assert await first(session, url) is None

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


def test_a_token_as_a_bearer_shows_its_user_and_wins_over_a_cookie() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        await enter(session, url, token_of(USERS[0]))
        bearer = f"Bearer {token_of(USERS[1])}"
        assert await own(session, url, Authorization=bearer) == (
            200,
            b'{"secret":"of eve-polastri"}',
        )
        # One that does not count is not made good by the cookie.
        for wrong in (f"{bearer}x", "Bearer ", "", "Basic YTpi"):
            assert (await own(session, url, Authorization=wrong))[0] == 403

    serve(ask)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        token_of("ada")[:-1],
        LinkKeys("o" * 32, "turnstile.").sign(Claims(user="ada", ends=ENDS)),
    ],
)
def test_a_token_that_was_not_signed_opens_nothing(token: str) -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        assert await enter(session, url, token) == 403
        assert not list(session.cookie_jar)
        assert (await own(session, url))[0] == 403

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
            assert int(answer.cookies["turnstile-portal"]["max-age"]) == 60
            cookie = answer.cookies["turnstile-portal"].value
        clock.now = float(ENDS)
        assert await enter(session, url, token) == 403
        replayed = {"Cookie": f"turnstile-portal={cookie}"}
        assert (await own(session, url, **replayed))[0] == 403
        assert await first(session, url, **replayed) is None
        assert (await own(session, url, Authorization=f"Bearer {token}"))[0] == 403

    serve(ask, clock)


def test_a_cookie_is_of_no_use_after_its_session() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        await enter(session, url, token_of(USERS[0]))
        cookie = next(iter(session.cookie_jar)).value
        await (await session.post(f"{url}leave")).release()
        assert (await own(session, url, Cookie=f"turnstile-portal={cookie}"))[0] == 403

    serve(ask)


@pytest.mark.parametrize("page", ["https://own.example/", "http://own.example/", None])
def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(page: str | None) -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        async with session.post(f"{url}enter", json={"token": token_of(USERS[0])}) as answer:
            cookie = answer.cookies["turnstile-portal"]
            assert cookie["httponly"]
            assert cookie["samesite"] == "Strict"
            assert bool(cookie["secure"]) == (page == "https://own.example/")

    serve(ask, page=page)


def test_another_page_cannot_enter_and_another_name_is_refused() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        assert await enter(session, url, token_of("ada"), Origin="http://evil.example") == 403
        assert (await own(session, url, Host="evil.example"))[0] == 403

    serve(ask)
    serve(ask, page="https://own.example/")


def test_a_proxy_before_it_keeps_the_name_by_which_browsers_know_it() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        names = {"Host": "own.example", "Origin": "https://own.example"}
        assert await enter(session, url, token_of("ada"), **names) == 204
        assert await enter(session, url, token_of("ada")) == 204

    serve(ask, page="https://own.example/")


def test_nothing_foreign_runs_nothing_is_kept_and_nobody_is_told_where_one_was() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        await enter(session, url, token_of(USERS[0]))
        for path in ("", "portal.css", "portal.js", "icon.svg", "events", "own", "nowhere"):
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
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        token = token_of(USERS[0])
        await enter(session, url, token)
        await enter(session, url, token + "x")
        await own(session, url, Authorization=f"Bearer {token}")
        await session.get(f"{url}nowhere?token={token}")

    caplog.set_level(logging.DEBUG)
    serve(ask)
    secret = token_of(USERS[0])[:20]
    assert not any(text in caplog.text for text in (*USERS, secret))


def test_whoever_opens_many_sessions_ends_the_own_first_ones() -> None:
    sessions = Sessions(Clock())
    others, _ = sessions.enter(Claims(user="eve", ends=ENDS))
    secrets = [sessions.enter(Claims(user="ada", ends=ENDS))[0] for _ in range(20)]
    assert [sessions.claims_of(secret) is not None for secret in secrets] == 12 * [False] + 8 * [
        True
    ]
    assert sessions.claims_of(others) is not None
