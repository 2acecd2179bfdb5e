"""`turnstile portal` on the real topics: each user sees only their own spending."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from streams.failures import Exit
from streams.local.server_process import free_ports
from streams.web.links import Claims, LinkKeys
from tests.browser import SCREENS, Screen, chromium, needs_chromium, static
from tests.integration.command import turnstile
from tests.integration.service import Service, ServiceFactory, eventually
from tests.waiting import HANGS_AFTER

KEY = "of-these-tests-alone"
USERS = ("eve-polastri", "adam-smith", "lilith-ash", "gone-for-good")


class Portal:
    """A running portal, and links to it."""

    def __init__(self, url: str, environment: dict[str, str], prefix: str) -> None:
        self.url, self.environment = url, environment
        self.keys = LinkKeys(KEY, prefix)

    def link(self, user: str) -> tuple[str, str]:
        """Return a link and its id, as the command prints them."""
        words = ("portal", "link", "--user", user, "--url", self.url)
        (line,) = turnstile(*words, "--json", environment=self.environment).lines
        return str(line["link"]), str(line["id"])

    def enter(self, token: str) -> str:
        """Open a link; return the session cookie, empty if there is none."""
        connection = self._connect()
        connection.request("POST", "/enter", json.dumps({"token": token}))
        cookie = str(connection.getresponse().headers["Set-Cookie"] or "").split(";")[0]
        connection.close()
        return cookie

    def ask(self, cookie: str) -> bytes:
        """Return what the page shows."""
        connection = self._connect()
        connection.request("GET", "/events", headers={"Cookie": cookie})
        line = connection.getresponse().readline()
        connection.close()
        return line.removeprefix(b"data: ")

    def _connect(self) -> HTTPConnection:
        address = urlsplit(self.url)
        return HTTPConnection(str(address.hostname), address.port, timeout=HANGS_AFTER)

    def own(self, user: str | int, *datasets: str) -> dict[str, Any]:
        """Return a user's data, once the portal has read all records."""
        cookie = self.enter(self.keys.sign(Claims.new(user=user, ends=2**32, datasets=datasets)))

        def seen() -> dict[str, Any] | None:
            said = self.ask(cookie)
            assert not any(other.encode() in said for other in USERS if other != user)
            own: dict[str, Any] = json.loads(said)
            return own if own["state"] == "ready" else None

        found: dict[str, Any] = eventually(seen)
        return found


@pytest.fixture(scope="module")
def charged(start_service: ServiceFactory) -> Iterator[Service]:
    with start_service(workers=1, partitions=2) as service:
        client = service.client
        client.create_dataset("person", epsilon=1.0, delta=1e-5)
        client.create_dataset("shop", epsilon=0.5, delta=1e-5, parents="person")
        run = client.run("shop", "weekly")
        for norms in ([0.5, 0.1, 0.1, 0.1], [9.0, 0.3, 0.1, 0.1], [9.0, 0.3, 0.1, 0.1]):
            run.charge(list(USERS), norms, noise_stddev=4.0)
        client.erase(USERS[3])
        service.settle()
        yield service


@pytest.fixture(scope="module")
def portal(charged: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    environment = {
        **charged.environment,
        "TURNSTILE_PORTAL_KEY": KEY,
        "TURNSTILE_PORTAL_STATE": str(tmp_path_factory.mktemp("portal") / "links.db"),
    }
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-m", "streams.cli", "portal", "--listen", address, "--json"]
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = json.loads(process.stdout.readline())["page"]
        try:
            yield Portal(url, environment, charged.prefix)
        finally:
            process.send_signal(signal.SIGTERM)
            said = process.stderr.read()
            assert process.wait(HANGS_AFTER) == Exit.OK
            assert not any(user in said for user in USERS)


def test_each_user_sees_their_spending_and_the_steps_without_them(portal: Portal) -> None:
    eve = {one["dataset"]: one for one in portal.own(USERS[0])["datasets"]}
    assert set(eve) == {"person", "shop"}
    shop = eve["shop"]
    assert shop["spent"]["epsilon"] > 0
    assert 0 < shop["budget"] <= 0.5
    (halt,) = shop["halts"]
    assert (halt["run"], halt["first"], halt["last"], halt["times"]) == ("weekly", 1, 2, 2)
    assert halt["reason"] == "budget"
    adam = {one["dataset"]: one for one in portal.own(USERS[1], "shop")["datasets"]}
    assert set(adam) == {"shop"}
    assert adam["shop"]["halts"] == []
    assert len(adam["shop"]["points"]) > 1
    rising = [point["epsilon"] for point in adam["shop"]["points"]]
    assert rising == sorted(rising)


def test_an_erased_user_sees_the_erasure(portal: Portal) -> None:
    own = portal.own(USERS[3])
    assert {one["state"] for one in own["datasets"]} == {"erased"}
    assert not any(one["points"] or one["halts"] for one in own["datasets"])


def test_an_unknown_user_sees_no_data_of_others(portal: Portal) -> None:
    for stranger in ("nobody", 7, "eve", "eve-polastr"):
        assert portal.own(stranger)["datasets"] == []


@needs_chromium
def test_the_page_in_a_browser(charged: Service, portal: Portal) -> None:
    with chromium() as browser:
        for name in SCREENS:
            with closing(Screen(browser, name)) as screen:
                look(portal, screen)
        page = browser.new_page()
        link, _ = portal.link(USERS[1])
        page.goto(f"{link[:-1]}{'A' if link[-1] != 'A' else 'B'}")
        page.wait_for_selector("#notice h2:has-text('This link does not work')")


def look(portal: Portal, screen: Screen) -> None:
    """Open a link, leave, and try to come back."""
    page, (link, _) = screen.page, portal.link(USERS[1])
    page.goto(link)
    page.wait_for_selector(".card svg.plot .point")
    assert page.locator(".card").count() == 2
    assert not any(user in page.content() for user in USERS if user != USERS[1])
    assert page.url == portal.url, "the token stays in the address"
    secret = link.partition("#")[2]
    assert not any(secret in url + referer for url, referer in screen.requests)
    page.reload()  # there is a cookie, and no token
    page.wait_for_selector(".card")
    page.goto(link)  # from the browser's history
    page.wait_for_selector(".card")
    screen.check(portal.url, "portal")
    page.click("#leave")
    page.wait_for_selector("#own", state="hidden")
    assert not any(user in page.content() for user in USERS)
    page.reload()
    page.wait_for_selector("#notice h2:has-text('Open your link')")
    page.goto(link)  # from the history, after the end of the session
    page.wait_for_selector("#notice h2:has-text('This link does not work')")


@needs_chromium
def test_a_card_shows_its_state_and_its_bar_shows_the_epsilon() -> None:
    halt = {
        "run": "r",
        "first": 3,
        "last": 3,
        "began": 80.0,
        "ended": 80.0,
        "times": 1,
        "is_roster": False,
        "reason": "budget",
        "refused_by": None,
    }
    risk = {"false_positive_rate": 0.01, "true_positive_rate": 0.0531, "advantage": 0.281}
    drawn = """([dataset]) => {
        const one = card(dataset, {now: 90}, 400);
        const [fill, pill] = [".fill", ".pill"].map((name) => one.querySelector(name));
        const [item] = one.querySelectorAll("ul.halts p");
        return {
            classes: one.className, text: one.textContent, width: fill.style.width,
            is_named: pill.textContent === STATES[dataset.state][0], reason: item.textContent,
            risk: one.querySelector(".risk").textContent,
        };
    }"""
    less, more = (0.25, "50%"), (0.6, "100%")  # compared with the budget
    reasons: dict[bool, set[str]] = {False: set(), True: set()}
    with chromium() as browser:
        page = static(browser, "portal")
        for state, exhausted, (epsilon, filled) in (
            ("open", False, less),
            ("nearly", False, less),
            ("spent", True, less),
            ("nearly", False, more),
        ):
            point = {"time": 70.0, "epsilon": epsilon, "share": 1.0}
            dataset = {
                "dataset": "shop",
                "parents": [],
                "budget": 0.5,
                "risk": risk,
                "state": state,
                "spent": point,
                "points": [point],
                "halts": [{**halt, "exhausted": exhausted}],
            }
            shown = page.evaluate(drawn, [dataset])
            assert shown["classes"].split() == ["card", state]
            assert (shown["width"], shown["is_named"]) == (filled, True)
            assert "0.6" not in shown["text"]
            # Rounded up: the rate in 1,000, and half of 1,000 guesses and the advantage.
            assert re.findall(r"\d[\d,]*\b", shown["risk"]) == [
                *("1,000", "641", "500", "10", "1,000", "54", "1,000"),
            ]
            reasons[exhausted].add(shown["reason"])
    (hopeful,), (final,) = reasons[False], reasons[True]
    assert hopeful.startswith(final)  # the text adds that a cheaper step may be admitted
    assert hopeful != final
