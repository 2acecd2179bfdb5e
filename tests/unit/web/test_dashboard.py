"""What is about people is for whoever has logged in, however somebody asks for it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from streams.cli.main import main
from streams.config import Config, ConfigurationError
from streams.failures import Exit
from streams.web.dashboard import MOST_OF_A_SESSION, MOST_OF_VISITORS, Dashboard
from streams.web.sessions import TRIES, TRIES_OF_ALL, Sessions, TooManyTries
from tests.unit.web.sites import PASSWORD, SECRET, dashboard
from tests.waiting import HANGS_AFTER

PEOPLE = {"runs": [SECRET]}


@pytest.mark.parametrize("page", [None, "http://own.example/"])
async def test_people_are_behind_the_login(page: str | None) -> None:
    async with dashboard(page=page) as browser:
        before = await browser.event()
        assert (before["known"], before["people"]) == (False, None)
        assert (before["service"] is not None) == (page is None)
        assert await browser.login("wrong") == 403
        assert (await browser.event())["people"] is None
        assert await browser.login() == 204
        assert (await browser.event())["people"] == PEOPLE
        (cookie,) = browser.cookies.items()
        assert await browser.post("logout") == 204
        for headers in ({}, {"Cookie": "=".join(cookie)}):
            assert (await browser.event(**headers))["people"] is None


@pytest.mark.parametrize("page", [None, "http://own.example/"])
async def test_answers_need_a_login_if_other_machines_reach_the_page(page: str | None) -> None:
    async with dashboard(page=page) as browser:
        path = "answers-of?dataset=shop&query="
        if page is not None:
            assert await browser.event("answers-events") == {"answers": None}
            assert (await browser.get(f"{path}q"))[0] == 403
            assert await browser.login() == 204
        seen = (await browser.event("answers-events"))["answers"]
        queries = [{"dataset": "shop", "query": "q", "records": 1}]
        assert seen == {"problem": None, "queries": queries}
        assert '"value":[12.5]' in (await browser.get(f"{path}q"))[1]
        assert (await browser.get(f"{path}other"))[0] == 404


@pytest.mark.parametrize(
    "cookie", ["", "turnstile=", "turnstile=x", "turnstile=" + "A" * 43, "turnstile=%00", "a=b"]
)
async def test_a_token_that_was_not_given_out_is_none(cookie: str) -> None:
    async with dashboard() as browser:
        assert (await browser.event(Cookie=cookie))["people"] is None


async def test_a_client_that_guesses_has_few_tries() -> None:
    async with dashboard() as browser:
        for number in range(TRIES):
            assert await browser.login(f"guess {number}") == 403
        assert await browser.login() == 429


def test_guesses_are_limited_per_address_and_together() -> None:
    now = 0.0
    sessions = Sessions(PASSWORD, lambda: now)

    def guess(address: str) -> None:
        assert sessions.enter("wrong", address) is None

    for _ in range(TRIES):
        guess("a")
    with pytest.raises(TooManyTries) as refused:
        sessions.enter(PASSWORD, "a")
    assert sessions.knows(sessions.enter(PASSWORD, "b"))
    now += refused.value.wait
    token = sessions.enter(PASSWORD, "a")
    assert sessions.knows(token)
    for number in range(TRIES_OF_ALL):
        guess(f"10.0.0.{number}")
    with pytest.raises(TooManyTries):
        sessions.enter(PASSWORD, "c")
    now += 12 * 3600
    assert not sessions.knows(token)


async def test_pages_without_a_login_leave_places_to_operators() -> None:
    async with dashboard() as browser, AsyncExitStack() as opened:
        assert all([await browser.is_shown(opened) for _ in range(MOST_OF_VISITORS)])
        assert not await browser.is_shown(opened)
        assert await browser.login() == 204
        assert all([await browser.is_shown(opened) for _ in range(MOST_OF_A_SESSION)])
        assert not await browser.is_shown(opened)
        assert await browser.login() == 204  # another session
        assert await browser.is_shown(opened)


async def test_a_closed_page_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dashboard, "every", 3600.0)  # no event finds it out
    async with dashboard() as browser:
        url = f"{browser.url}events"
        pages = [await browser.session.get(url) for _ in range(MOST_OF_VISITORS)]
        assert {page.status for page in pages} == {200}
        for page in pages:
            page.close()
        async with asyncio.timeout(HANGS_AFTER):
            while (page := await browser.session.get(url)).status != 200:
                await page.read()


async def test_who_may_see_nothing_takes_up_no_place() -> None:
    async with dashboard(page="https://own.example/") as browser:
        async with browser.session.get(f"{browser.url}events") as answer:
            said = await answer.text()  # it ends
        assert '"service":null' in said


def test_no_page_is_sent_to_other_machines_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_DASHBOARD_PASSWORD", PASSWORD)
    url = "--url http://own.example/"
    for options in ("--listen 0.0.0.0:8480", f"--listen 10.0.0.1:8480 {url}", url):
        assert main(["dashboard", *options.split()]) == Exit.USAGE


def test_other_machines_need_a_password_that_is_not_short() -> None:
    assert main(["dashboard", "--url", "https://own.example/"]) == Exit.USAGE
    with pytest.raises(ConfigurationError):
        Config(dashboard_password="x" * 11)
    assert Config(dashboard_password="x" * 12).dashboard_password
