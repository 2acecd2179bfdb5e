"""What is about people is for whoever has logged in, however somebody asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import msgspec
import pytest

from streams.cli.main import main
from streams.cli.printing import Exit
from streams.config import Config, ConfigurationError
from streams.http_server import HEADERS
from streams.web.answer_reader import AnswerReader
from streams.web.dashboard import MOST_OF_A_SESSION, MOST_OF_VISITORS, Dashboard
from streams.web.sessions import TRIES, TRIES_OF_ALL, Sessions, TooManyTries
from tests.unit.answerer.published import answer
from tests.waiting import HANGS_AFTER

PASSWORD = "correct horse"
SECRET = "eve-was-halted"


class Fake:
    """A service with one thing to hide."""

    def service(self) -> dict[str, Any]:
        return {"alarms": []}

    def people(self) -> dict[str, Any]:
        return {"runs": [SECRET]}


def serve(
    ask: Callable[[aiohttp.ClientSession, str], Awaitable[None]], *, page: str | None = None
) -> None:
    """Ask a server on a loopback address, which browsers may reach at a ``page`` of a proxy."""

    async def asked() -> None:
        answers = AnswerReader(Config())
        answers.add(answer(0, 12.5))
        dashboard = Dashboard(Fake(), answers, Sessions(PASSWORD), "127.0.0.1:0", page=page)
        await dashboard.start()
        try:
            jar = aiohttp.CookieJar(unsafe=True)  # it is an address, which has no domain
            async with aiohttp.ClientSession(cookie_jar=jar) as session:
                await ask(session, dashboard.url)
        finally:
            await dashboard.stop()

    asyncio.run(asked())


async def first(
    session: aiohttp.ClientSession, url: str, path: str = "events", **headers: str
) -> dict[str, Any]:
    """Return the first event of a page."""
    async with session.get(f"{url}{path}", headers=headers) as answer:
        line = await answer.content.readline()
        assert line.startswith(b"data: ")
        told: dict[str, Any] = msgspec.json.decode(line.removeprefix(b"data: "))
        return told


async def login(session: aiohttp.ClientSession, url: str, password: str, **headers: str) -> int:
    content = {"password": password}
    async with session.post(f"{url}login", json=content, headers=headers) as answer:
        return answer.status


@pytest.mark.parametrize("page", [None, "http://own.example/"])
def test_people_are_behind_the_login(page: str | None) -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        before = await first(session, url)
        assert (before["known"], before["people"]) == (False, None)
        assert (before["service"] is not None) == (page is None)
        assert await login(session, url, "wrong") == 403
        assert (await first(session, url))["people"] is None
        assert await login(session, url, PASSWORD) == 204
        assert (await first(session, url))["people"] == {"runs": [SECRET]}
        async with session.post(f"{url}logout") as answer:
            assert answer.status == 204
        assert (await first(session, url))["people"] is None

    serve(ask, page=page)


@pytest.mark.parametrize("page", [None, "http://own.example/"])
def test_answers_need_a_login_if_other_machines_reach_the_page(page: str | None) -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        path = f"{url}answers-of?dataset=shop&query=q"
        before = await first(session, url, "answers-events")
        if page is not None:
            assert before == {"answers": None}
            async with session.get(path) as refused:
                assert refused.status == 403
            assert await login(session, url, PASSWORD) == 204
        seen = (await first(session, url, "answers-events"))["answers"]
        assert seen == {
            "problem": None,
            "queries": [{"dataset": "shop", "query": "q", "records": 1}],
        }
        async with session.get(path) as found:
            shown = await found.json()
        assert (shown["unit"], shown["lines"][0]["value"]) == ("events per day", [12.5])
        async with session.get(f"{url}answers-of?dataset=shop&query=other") as missing:
            assert missing.status == 404

    serve(ask, page=page)


def test_the_page_with_answers_has_the_same_security_headers() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        for path in ("answers", "answers.js", "answers-events"):
            async with session.get(f"{url}{path}") as answer:
                assert answer.status == 200
                assert {**HEADERS, **answer.headers} == {**answer.headers, **HEADERS}

    serve(ask)


@pytest.mark.parametrize(
    "cookie", ["", "turnstile=", "turnstile=x", "turnstile=" + "A" * 43, "turnstile=%00", "a=b"]
)
def test_a_token_that_was_not_given_out_is_none(cookie: str) -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        assert (await first(session, url, Cookie=cookie))["people"] is None

    serve(ask)


def test_a_token_is_of_no_use_after_its_session() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        await login(session, url, PASSWORD)
        token = next(cookie.value for cookie in session.cookie_jar)
        await (await session.post(f"{url}logout")).release()
        replayed = await first(session, url, Cookie=f"turnstile={token}")
        assert replayed["people"] is None

    serve(ask)


@pytest.mark.parametrize("page", ["https://own.example/", None])
def test_the_cookie_is_out_of_reach_of_scripts_other_sites_and_other_ports(
    page: str | None,
) -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        async with session.post(f"{url}login", json={"password": PASSWORD}) as answer:
            (cookie,) = answer.cookies.values()
        assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
        assert (cookie["path"], cookie["domain"]) == ("/", "")
        # Without TLS browsers accept no cookie of this prefix.
        is_encrypted = page is not None
        assert (cookie.key.startswith("__Host-"), bool(cookie["secure"])) == 2 * (is_encrypted,)

    serve(ask, page=page)


def test_a_client_that_guesses_has_few_tries() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        for number in range(TRIES):
            assert await login(session, url, f"guess {number}") == 403
        assert await login(session, url, PASSWORD) == 429

    serve(ask)


def test_guesses_from_one_address_lock_out_no_other_one() -> None:
    sessions = Sessions(PASSWORD)
    for _ in range(TRIES):
        assert sessions.enter("wrong", "10.0.0.1") is None
    with pytest.raises(TooManyTries):
        sessions.enter(PASSWORD, "10.0.0.1")
    assert sessions.knows(sessions.enter(PASSWORD, "10.0.0.2"))


def test_guesses_from_many_addresses_are_limited_together() -> None:
    sessions = Sessions(PASSWORD)
    for number in range(TRIES_OF_ALL):
        assert sessions.enter("wrong", f"10.0.0.{number}") is None
    with pytest.raises(TooManyTries):
        sessions.enter(PASSWORD, "10.1.0.0")


def test_pages_without_a_login_leave_places_to_operators() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        async with AsyncExitStack() as opened:

            async def is_told() -> bool:
                answer = await opened.enter_async_context(session.get(f"{url}events"))
                return answer.status == 200

            assert all([await is_told() for _ in range(MOST_OF_VISITORS)])
            assert not await is_told()
            assert await login(session, url, PASSWORD) == 204
            assert all([await is_told() for _ in range(MOST_OF_A_SESSION)])
            assert not await is_told()
            assert await login(session, url, PASSWORD) == 204  # another session
            assert await is_told()

    serve(ask)


def test_a_closed_page_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dashboard, "every", 3600.0)  # no event finds it out

    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        pages = [await session.get(f"{url}events") for _ in range(MOST_OF_VISITORS)]
        assert {page.status for page in pages} == {200}
        for page in pages:
            page.close()
        async with asyncio.timeout(HANGS_AFTER):
            while (page := await session.get(f"{url}events")).status != 200:
                await page.read()

    serve(ask)


def test_tries_come_back_and_sessions_end() -> None:
    now = 0.0
    sessions = Sessions(PASSWORD, lambda: now)
    for _ in range(TRIES):
        assert sessions.enter("wrong", "a") is None
    with pytest.raises(TooManyTries) as refused:
        sessions.enter(PASSWORD, "a")
    now += refused.value.wait
    token = sessions.enter(PASSWORD, "a")
    assert sessions.knows(token)
    now += 12 * 3600
    assert not sessions.knows(token)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"password": 5}', b"\xff", b'{"password": "\\ud800"}', b"x" * 99]
)
def test_an_odd_login_is_refused(body: bytes) -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        async with session.post(f"{url}login", data=body) as answer:
            assert answer.status in (400, 403)

    serve(ask)


def test_another_page_cannot_log_in_and_another_name_is_refused() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        assert await login(session, url, PASSWORD, Origin="http://evil.example") == 403
        assert await login(session, url, PASSWORD, Origin=url.rstrip("/")) == 204
        for name in ("evil.example", "127.0.0.1.evil.example", "", "[", "a b"):
            async with session.get(f"{url}events", headers={"Host": name}) as answer:
                assert answer.status in (400, 403), name

    serve(ask)


def test_nothing_foreign_runs_on_the_page_and_nothing_is_kept() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        for path in ("", "dashboard.css", "dashboard.js", "dashboard.svg", "events", "nowhere"):
            async with session.get(url + path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["Cache-Control"] == "no-store"
                if not path:
                    page = await answer.text()
        assert "http" not in page  # no content delivery network, no font of somebody's
        assert "style=" not in page
        assert SECRET not in page

    serve(ask)


def test_who_may_see_nothing_takes_up_no_place() -> None:
    async def ask(session: aiohttp.ClientSession, url: str) -> None:
        async with session.get(f"{url}events") as answer:
            said = await answer.text()  # it ends
        assert '"service":null' in said

    serve(ask, page="https://own.example/")


@pytest.mark.parametrize(
    "options",
    [
        "--listen 0.0.0.0:8480",
        "--listen 10.0.0.1:8480 --url http://own.example/",
        "--url http://own.example/",
    ],
)
def test_no_page_is_sent_to_other_machines_without_tls(
    options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_DASHBOARD_PASSWORD", PASSWORD)
    assert main(["dashboard", *options.split()]) == Exit.USAGE


def test_for_other_machines_a_password_has_to_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--url", "https://own.example/"]) == Exit.USAGE
    assert "TURNSTILE_DASHBOARD_PASSWORD_FILE" in capsys.readouterr().err


def test_a_short_password_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        Config(dashboard_password="x" * 11)
    assert Config(dashboard_password="x" * 12).dashboard_password
