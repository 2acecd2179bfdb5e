"""The page with answers draws what was published, in any browser window, and loads nothing else."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest

from streams.config import Config
from streams.web.answer_reader import AnswerReader
from tests.browser import SCREENS, Screen, chromium, needs_chromium
from tests.unit.answerer.published import answer, correction, moment
from tests.unit.web.sites import dashboard

BLOCK = [answer(at, 100.0 + at, provisional_until=moment(20)) for at in range(20)]


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
async def test_the_page_shows_values_gaps_and_new_answers(reader: AnswerReader) -> None:
    async with dashboard(answers=reader) as browser:
        await asyncio.to_thread(check, reader, browser.url)


def check(reader: AnswerReader, url: str) -> None:
    """Look at the page on each screen, and at an answer that comes later."""
    with chromium() as browser:
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
