"""A link opens the page of one user once, for one browser, until it ends."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from streams.config import ConfigurationError
from streams.web.links import Claims, TokenKind, Visits
from streams.web.portal import MOST_OF_A_USER, Portal
from tests.unit.web.sites import ENDS, KEYS, USERS, Browser, Clock, portal, token_of

ADA = {"secret": "of ada-lovelace"}


async def is_shut(browser: Browser, **headers: str) -> bool:
    """Return whether nothing is shown."""
    return await browser.event(**headers) is None


async def test_a_link_is_exchanged_for_a_cookie_and_shows_its_user() -> None:
    async with portal() as browser:
        assert await is_shut(browser)
        for user, other in (USERS, USERS[::-1]):
            assert await browser.enter(token_of(user)) == 204
            for query in ("", f"?user={other}", "?token=x", f"?u={other}&dataset=d", f"#{other}"):
                shown = await browser.event(f"events{query}", **{"X-User": other})
                assert shown == {"secret": f"of {user}"}
        assert await browser.post("leave") == 204
        assert await is_shut(browser)


async def test_a_link_opens_one_browser_and_works_there_again() -> None:
    async with portal() as browser:
        token = token_of()
        assert await browser.enter(token) == 204
        async with Browser(browser.url) as another:
            assert await another.enter(token) == 403
            assert another.cookies == {}
            assert await is_shut(another)
        assert await browser.enter(token) == 204  # from its history or a bookmark
        assert await browser.event() == ADA


async def test_a_link_that_was_left_opens_nothing_any_more() -> None:
    async with portal() as browser:
        token = token_of()
        await browser.enter(token)
        (cookie,) = browser.cookies.items()
        await browser.post("leave")
        assert await browser.enter(token) == 403
        assert await is_shut(browser, Cookie="=".join(cookie))
        assert await browser.enter(token_of()) == 204  # another link of this user


async def test_opened_and_left_links_are_remembered_over_a_restart(tmp_path: Path) -> None:
    opened, left, file = token_of(USERS[0]), token_of(USERS[1]), tmp_path / "links.db"
    async with portal(file=file) as browser:
        await browser.enter(left)
        await browser.post("leave")
        await browser.enter(opened)
        cookies = browser.cookies
    async with portal(file=file) as browser:
        for token in (opened, left):
            assert await browser.enter(token) == 403
        browser.session.cookie_jar.update_cookies(cookies)
        assert await browser.event() == ADA


async def test_a_revoked_link_ends_in_the_middle_of_a_session(tmp_path: Path) -> None:
    file = tmp_path / "links.db"
    async with portal(file=file) as browser:
        claims = Claims.new(user=USERS[0], ends=ENDS)
        await browser.enter(KEYS.sign(claims))
        other = Visits(file)  # the command that revokes it is another process
        assert other.end(claims.id, ENDS)
        other.close()
        assert await is_shut(browser)
        assert await browser.enter(KEYS.sign(claims)) == 403


async def test_an_open_page_ends_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Portal, "every", 0.01)
    async with portal() as browser:
        await browser.enter(token_of())
        async with browser.session.get(f"{browser.url}events") as answer:
            assert b"secret" in await answer.content.readline()
            await browser.post("leave")
            rest = (await answer.text()).split()  # it ends
        assert rest[-4:] == ["data:", "null", "retry:", "2000"]


async def test_a_link_is_no_session_and_a_session_is_no_link() -> None:
    async with portal() as browser:
        token = token_of()
        await browser.enter(token)
        ((name, secret),) = browser.cookies.items()
        # The key alone makes no session: its link has to be opened first.
        forged = KEYS.sign(Claims.new(user=USERS[0], ends=ENDS), TokenKind.SESSION)
        async with Browser(browser.url) as another:
            assert await another.enter(secret) == 403
            for given in (token, forged):
                assert await is_shut(another, Cookie=f"{name}={given}")


async def test_one_user_leaves_places_to_others() -> None:
    async with portal() as browser, AsyncExitStack() as opened:
        await browser.enter(token_of())
        assert all([await browser.is_shown(opened) for _ in range(MOST_OF_A_USER)])
        await browser.enter(token_of())  # another link of this user
        assert not await browser.is_shown(opened)
        another = await opened.enter_async_context(Browser(browser.url))
        await another.enter(token_of(USERS[1]))
        assert await another.is_shown(opened)


async def test_neither_a_link_nor_a_session_outlives_its_end() -> None:
    clock = Clock()
    async with portal(clock=clock) as browser:
        clock.now = ENDS - 60.0
        token = token_of()
        async with browser.session.post(f"{browser.url}enter", json={"token": token}) as answer:
            ((name, cookie),) = answer.cookies.items()
        assert int(cookie["max-age"]) == 60
        clock.now = float(ENDS)
        for link in (token, token_of()):
            assert await browser.enter(link) == 403
        assert await is_shut(browser, Cookie=f"{name}={cookie.value}")


async def test_no_log_has_a_token_or_a_user(caplog: pytest.LogCaptureFixture) -> None:
    token = token_of()
    caplog.set_level(logging.DEBUG)
    async with portal() as browser:
        await browser.enter(token)
        await browser.enter(token + "x")
        for header in (f"Bearer {token}", f"Bearer {token * 20}"):
            await browser.event(Authorization=header)
        await browser.get(f"nowhere?token={token}")
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
