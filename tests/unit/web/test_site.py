"""Both sites set cookies and security headers, and refuse the same requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from streams.http_server import HEADERS
from tests.unit.web.sites import PASSWORD, SECRET, USERS, dashboard, portal, token_of


class SiteCase(NamedTuple):
    """A site: how to serve it, how to begin a session there, and its paths."""

    serve: Callable[..., Any]
    login: str
    content: dict[str, Any]
    paths: str


SITES = (
    SiteCase(
        dashboard,
        "login",
        {"password": PASSWORD},
        "dashboard.css dashboard.js dashboard.svg common.js events answers answers.js "
        "answers-events nowhere",
    ),
    SiteCase(
        portal,
        "enter",
        {"token": token_of()},
        "portal.css portal.js portal.svg common.js events nowhere",
    ),
)
sites = pytest.mark.parametrize("site", SITES, ids=lambda site: site.login)


@sites
@pytest.mark.parametrize("page", ["https://own.example/", "http://own.example/", None])
async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(
    site: SiteCase, page: str | None
) -> None:
    async with site.serve(page=page) as browser:
        async with browser.session.post(browser.url + site.login, json=site.content) as answer:
            (cookie,) = answer.cookies.values()
        assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
        assert (cookie["path"], cookie["domain"]) == ("/", "")
        # Without TLS browsers accept no cookie of this prefix.
        is_encrypted = page == "https://own.example/"
        assert (cookie.key.startswith("__Host-"), bool(cookie["secure"])) == 2 * (is_encrypted,)


@sites
async def test_pages_run_no_foreign_code_and_browsers_keep_nothing(site: SiteCase) -> None:
    async with site.serve() as browser:
        assert await browser.post(site.login, site.content) == 204
        for path in ("", *site.paths.split()):
            async with browser.session.get(browser.url + path) as answer:
                assert answer.status == (404 if path == "nowhere" else 200)
                assert HEADERS.items() <= dict(answer.headers).items()
                kind = answer.content_type
                assert kind.endswith("script") or not path.endswith(".js"), kind
        _, shown = await browser.get()
        assert not any(text in shown for text in ("http", "style=", SECRET, *USERS))
    assert "default-src 'none'" in HEADERS["Content-Security-Policy"]
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    assert (HEADERS["Cache-Control"], HEADERS["Referrer-Policy"]) == ("no-store", "no-referrer")


ODD = [b"", b"{}", b"[]", b'{"password": 5, "token": 5}', b"\xff", b"x" * 99, b"x" * 40_000]
ODD += [b'{"password": "\\ud800", "token": "\\ud800"}']


@sites
async def test_odd_bodies_other_origins_and_other_names_are_refused(site: SiteCase) -> None:
    for body in ODD:
        async with site.serve() as browser:  # a client has few tries
            assert await browser.post(site.login, body) in (400, 403, 413), body
    async with site.serve() as browser:
        evil = await browser.post(site.login, site.content, Origin="http://evil.example")
        own = await browser.post(site.login, site.content, Origin=browser.url.rstrip("/"))
        assert (evil, own) == (403, 204)
        assert (await browser.get("events", Host="evil.example"))[0] == 403
