"""Pages in Chromium, as users open them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.readme import TOP

_CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
SCREENS = {"light": (1200, 900), "dark": (1200, 900), "phone": (390, 844)}
needs_chromium = pytest.mark.skipif(
    _CHROMIUM is None, reason="no Chromium here: apt-get install chromium"
)


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        # Nothing but our own page is loaded: root, as in a container, has no other sandbox.
        browser = driver.chromium.launch(
            executable_path=_CHROMIUM, args=["--no-sandbox"] if os.getuid() == 0 else []
        )
        yield browser
        browser.close()


def static(browser: Any, name: str) -> Any:
    """Return a page without a server, whose functions a test calls."""
    page = browser.new_page()
    page.goto((TOP / f"streams/web/static/{name}.html").as_uri())
    return page


class Screen:
    """A page on one kind of screen, and what it did.

    Attributes:
        problems: errors of its scripts and of its console.
        requests: addresses with their Referer headers.
    """

    def __init__(self, browser: Any, screen: str) -> None:
        width, height = SCREENS[screen]
        self._name = screen
        self._context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if screen == "dark" else "light",
        )
        self.page = self._context.new_page()
        self.problems: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on(
            "console", lambda said: said.type == "error" and self.problems.append(said.text)
        )
        self.page.on(
            "request",
            lambda one: self.requests.append((one.url, one.headers.get("referer", ""))),
        )

    def check(self, url: str, name: str) -> None:
        """Check that the page fits the screen, loaded nothing foreign and had no problem.

        A picture is kept in out/.
        """
        overflow = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, "it has to be scrolled sideways"
        assert all(asked.startswith(url) for asked, _ in self.requests)
        assert self.problems == []
        self.page.screenshot(path=str(TOP / "out" / name / f"{self._name}.png"), full_page=True)

    def close(self) -> None:
        """Close the page."""
        self._context.close()
