"""Links between the pages lead to files and headings that exist, as GitHub names them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.readme import DOCUMENTS


def text_of(page: Path) -> str:
    """Return the text of a page, without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


@cache
def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text_of(page), flags=re.M)
    named = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return named | set(re.findall(r'id="([^"]+)"', text_of(page)))


def is_broken(page: Path, link: str) -> bool:
    if ":" in link:
        return False
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    if not target.exists():
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors(target)


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    links = [
        (page, link) for page in DOCUMENTS for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page))
    ]
    assert links
    assert [link for link in links if is_broken(*link)] == []
