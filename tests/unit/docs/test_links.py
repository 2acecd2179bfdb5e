"""Links between the pages lead to files and headings that exist, as GitHub names them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.readme import DOCUMENTS


def text_of(page: Path) -> str:
    """Return the text of a page, without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text_of(page), flags=re.M)
    named = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return named | set(re.findall(r'id="([^"]+)"', text_of(page)))


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if ":" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link
