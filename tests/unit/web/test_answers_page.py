"""The page with answers draws what was published, in any browser window, and loads nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from streams.config import Config
from streams.web.answer_reader import AnswerReader
from streams.web.dashboard import Dashboard
from streams.web.sessions import Sessions
from tests.browser import SCREENS, Screen, chromium, needs_chromium
from tests.unit.answerer.published import answer, correction, moment

BLOCK = [answer(at, 100.0 + at, provisional_until=moment(20)) for at in range(20)]


class NoService:
    """A service of which nothing is known; the page does not ask for it."""

    def service(self) -> None:
        return None

    def people(self) -> None:
        return None


@contextmanager
def served(reader: AnswerReader) -> Iterator[str]:
    """Serve the dashboard in a thread; yield its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    dashboard = Dashboard(NoService(), reader, Sessions("of these tests"), "127.0.0.1:0")
    try:
        asyncio.run_coroutine_threadsafe(dashboard.start(), loop).result()
        yield dashboard.url
        asyncio.run_coroutine_threadsafe(dashboard.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def reader() -> AnswerReader:
    """Return a reader of corrected, provisional and labelled answers, with a gap."""
    reader = AnswerReader(Config())
    later = [answer(at, 130.0, provisional_until=moment(60)) for at in range(30, 40)]
    by = [
        answer(at, [5.0, 3.0], labels=["north", "<b>"], query="by", step=500 + at)
        for at in range(3)
    ]
    for record in (*BLOCK, correction(BLOCK, 5.0), *later, *by):
        reader.add(record)
    return reader


@pytest.mark.slow
@pytest.mark.process
@needs_chromium
def test_the_page_shows_values_gaps_and_new_answers(reader: AnswerReader) -> None:
    with served(reader) as url, chromium() as browser:
        for name in SCREENS:
            with closing(Screen(browser, name)) as screen:
                screen.page.goto(f"{url}answers")
                look(screen.page)
                screen.check(url, "answers")
        page = browser.new_page()
        page.goto(f"{url}answers")
        page.wait_for_selector("#table td:has-text('130.0')")
        reader.add(answer(40, 777.0))
        page.wait_for_selector("#table td:has-text('777.0')")


def look(page: Any) -> None:
    """Check the chart and the table of both queries, and the chart's keys."""
    page.wait_for_selector("#charts figure")
    figure = page.locator("#charts [role=slider]")
    assert figure.get_attribute("aria-valuemax") == "30"
    assert page.locator("#charts .gap").count() == 1
    assert "2026-01-21 to 2026-01-31" in page.inner_text("#gaps")
    # One line is of all users; the other one, of provisional answers, is marked.
    assert page.locator("#charts .line").count() == 2
    assert page.locator("#charts .line.care").count() == 1
    figure.focus()
    page.keyboard.press("Home")
    assert figure.get_attribute("aria-valuetext") == "2026-01-01: 105.0 (102.0 to 108.0), corrected"
    page.keyboard.press("ArrowRight")
    assert "106.0" in page.inner_text("#charts figcaption")
    assert page.locator("#table > table tbody tr").count() == 12
    page.click("#table summary")
    page.wait_for_selector("#table details table")
    assert page.locator("#table tbody tr").count() == 30
    page.select_option("#query", label="by")
    page.wait_for_selector("#charts figure:nth-of-type(2)")
    assert page.locator("#charts strong").all_inner_texts() == ["north", "<b>"]
    page.select_option("#label", label="<b>")
    assert page.locator("#charts figure").count() == 1
    assert page.inner_text("#table td:nth-child(3)").endswith("3.0")
    page.select_option("#query", label="q")
    page.wait_for_selector("#charts .gap")
