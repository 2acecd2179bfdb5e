"""`turnstile dashboard` shows problems, recovers, and hides user data without a login."""

from __future__ import annotations

import json
import os
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
from tests.browser import SCREENS, Screen, chromium, needs_chromium, static
from tests.integration.service import Service, ServiceFactory, eventually
from tests.waiting import HANGS_AFTER

PASSWORD = "of these tests"
USERS = [f"user-{name}" for name in ("eve", "adam", "lilith")]


class Page:
    """A dashboard, as a browser receives it."""

    def __init__(self, url: str) -> None:
        self.url, self.address = url, urlsplit(url)
        self.cookie = ""

    def login(self) -> None:
        connection = HTTPConnection(
            str(self.address.hostname), self.address.port, timeout=HANGS_AFTER
        )
        connection.request("POST", "/login", json.dumps({"password": PASSWORD}))
        answer = connection.getresponse()
        assert answer.status == 204
        self.cookie = str(answer.headers["Set-Cookie"]).split(";")[0]
        connection.close()

    def said(self) -> str:
        """Return the first event."""
        connection = HTTPConnection(
            str(self.address.hostname), self.address.port, timeout=HANGS_AFTER
        )
        connection.request("GET", "/events", headers={"Cookie": self.cookie})
        line = connection.getresponse().readline().decode()
        connection.close()
        return line.removeprefix("data: ")

    def seen(self) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads(self.said())
        return seen

    def alarms(self, **about: Any) -> list[dict[str, Any]]:
        """Return the alarms about a subject."""
        alarms = self.seen()["service"]["alarms"]
        return [alarm for alarm in alarms if about.items() <= alarm["about"].items()]


@pytest.fixture(scope="module")
def watched(start_service: ServiceFactory) -> Iterator[Service]:
    with start_service(workers=1, partitions=2, own_redis=True) as service:
        service.client.create_dataset("people", measure="zcdp", budget=1.0)
        run = service.client.run("people", "night-7")
        for _ in range(3):  # the third step does not fit
            run.charge(USERS, [1.0, 1.0, 0.1], noise_stddev=1.0)
        service.publish(0, {"type": "charge", "users": USERS, "norms": [1.0]})
        service.settle()
        yield service


@pytest.fixture(scope="module")
def page(watched: Service) -> Iterator[Page]:
    environment = {
        **os.environ,
        **watched.environment,
        "TURNSTILE_DASHBOARD_PASSWORD": PASSWORD,
    }
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-m", "streams.cli", "dashboard", "--listen", address, "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = Page(json.loads(process.stdout.readline())["page"])
        try:
            for part in ("rejects", "partitions"):
                eventually(lambda part=part: shown.seen()["service"][part])
            yield shown
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANGS_AFTER) == Exit.OK


def test_users_are_shown_only_after_a_login(watched: Service, page: Page) -> None:
    everybody = page.seen()
    assert [one["state"] for one in everybody["service"]["partitions"]] == ["deciding"] * 2
    assert "users" not in everybody["service"]["datasets"][0]
    assert everybody["service"]["rejects"] == {"malformed": 1}
    said = page.said()
    status = watched.command("status")
    for user in USERS:
        assert user not in said + status.out + status.said
    assert "night-7" not in said


def test_the_dashboard_shows_runs_users_and_rejects(page: Page) -> None:
    operator = Page(page.url)
    operator.login()
    people = eventually(lambda: complete(operator.seen()["people"]))
    assert people["users"]["datasets"] == {"people": len(USERS)}
    assert people["users"]["exhausted"] == {"people": 2}
    (run,) = people["runs"]
    assert (run["run"], run["step"], run["users"], run["halted"]) == ("night-7", 2, 3, 2)
    (refused,) = people["refused"]
    assert USERS[0] in refused["record"]


def complete(people: dict[str, Any]) -> dict[str, Any] | None:
    """Return the figures about users, once the dashboard has read all records."""
    return people if people["runs"] and people["refused"] else None


@needs_chromium
def test_the_page_in_a_browser(watched: Service, page: Page) -> None:
    with chromium() as browser:
        for name in SCREENS:
            with closing(Screen(browser, name)) as screen:
                look(screen, page.url)


def partition_of(number: int, state: str = "deciding") -> dict[str, Any]:
    return {
        "partition": number,
        "state": state,
        "owner": f"host-{number % 2}",
        "rate": 1.0,
        "lag": 0,
        "snapshot": 7,
    }


def service_of(partitions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of a service, with an alarm about each partition that is not decided."""
    return {
        "alarms": [
            {
                "level": "wrong",
                "what": f"Partition {one['partition']} is {one['state']}",
                "do": "Start a worker",
                "about": {"partition": one["partition"], "reason": "owner-silent"},
            }
            for one in partitions
            if one["state"] != "deciding"
        ],
        "away": {"Kafka": False, "Redis": False},
        "partitions": partitions,
        "rate": 1.0,
        "rates": [1.0, 1.0],
        "lag": 0,
        "datasets": [],
        "workers": [],
        "rejects": {},
    }


@needs_chromium
@pytest.mark.parametrize("screen", ["light", "phone"])
def test_hundreds_of_partitions_are_folded(screen: str) -> None:
    bad = [3, 7, 8, 200]
    states = ["waiting" if number in bad else "deciding" for number in range(256)]
    service = service_of([partition_of(number, state) for number, state in enumerate(states)])
    with chromium() as browser:
        width, height = SCREENS[screen]
        page = static(browser, "dashboard")
        page.set_viewport_size({"width": width, "height": height})
        show = "(service) => showService(service)"
        page.evaluate(show, service)
        cells = "document.querySelectorAll('#partitions tbody td:first-child')"
        listed = f"[...{cells}].map((cell) => cell.innerText)"
        assert page.evaluate(listed) == list(map(str, bad))
        assert page.evaluate("document.documentElement.scrollHeight") < 3 * height
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        # The four partitions with one problem are one alarm.
        assert page.locator("#alarms .alarm").count() == 1
        assert "3, 7-8, 200" in page.inner_text("#alarms")
        # The others open on demand, and stay open when new values come.
        page.locator("#partitions summary").click()
        page.wait_for_selector("#partitions .scroll table")
        page.evaluate(
            show, {**service, "partitions": [{**one, "lag": 5} for one in service["partitions"]]}
        )
        assert len(page.evaluate(listed)) == 256


@needs_chromium
def test_old_values_are_grey_and_counts_are_exact() -> None:
    service = service_of([partition_of(0)])
    run = {"run": "night", "dataset": "d", "attempt": 1, "step": 7, "rate": 0.5}
    run |= {"users": 4, "halted": 1, "state": "open"}
    people = {"runs": [run], "refused": []}
    old = {**service, "away": {"Kafka": False, "Redis": True}}
    with chromium() as browser:
        page = static(browser, "dashboard")
        page.evaluate("([service, people]) => showPeople(people, true)", [service, people])
        for seen, is_old in ((service, False), (old, True)):
            page.evaluate("(service) => showService(service)", seen)
            for part in ("#figures", "#partitions"):
                found = page.evaluate(
                    "(part) => Boolean(document.querySelector(part).closest('.old'))", part
                )
                assert found == is_old, part
        page.evaluate("(service) => showService(service)", service)
        assert page.text_content("#partitions td") == "0"
        assert all(page.locator("th").all_inner_texts())
        assert "users" not in page.inner_text("#partitions")
        users = {"partitions": {"0": 1400}, "datasets": {}, "exhausted": {}}
        page.evaluate("([service, users]) => showService(service, users)", [service, users])
        assert page.locator("#partitions th").count() == 7
        assert "1,400" in page.inner_text("#partitions")


def look(screen: Screen, url: str) -> None:
    """Log in as an operator does, and check the page."""
    shown = screen.page
    shown.goto(url)
    shown.wait_for_selector("#partitions .state.deciding")
    shown.wait_for_selector("#pill.well")
    assert not any(user in shown.content() for user in USERS)
    assert not shown.is_visible("#people")
    shown.fill("#password", PASSWORD)
    shown.click("form button")
    shown.wait_for_selector("#runs td:has-text('night-7')")
    shown.click("#refused summary")
    shown.wait_for_selector(f"#refused pre:has-text('{USERS[0]}')")
    screen.check(url, "dashboard")
    shown.click("#leave")
    shown.wait_for_selector("#login", state="visible")
    assert not any(user in shown.content() for user in USERS)
