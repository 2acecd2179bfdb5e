"""The documentation site is built without a warning, and has what it should."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from sphinx.application import Sphinx

from streams.answerer.published_answers import PrivateAnswer
from streams.records import Charge
from tests.readme import DOCS, TOP


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_the_site_is_whole(tmp_path: Path) -> None:
    """One test, since building takes its time: what it looks at is below."""
    site = tmp_path / "html"
    app = Sphinx(
        TOP, TOP / "docs" / "site", site, tmp_path / "doctrees", "html",
        status=None, exception_on_warning=True,
    )  # fmt: skip
    app.build()
    assert app.statuscode == 0
    assert 'url=docs/index.html"' in (site / "index.html").read_text(encoding="utf-8")
    _the_first_page_leads_to_every_page(site / "docs")
    reference = site / "docs" / "reference"
    _a_page_has_every_field_of_a_record(reference / "protocol.html", "charge", Charge)
    _a_page_has_every_field_of_a_record(
        reference / "answers.html", "a-private-answer", PrivateAnswer
    )


def _the_first_page_leads_to_every_page(site: Path) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    linked = set(re.findall(r'href="([^"#:]+)\.html', first))
    pages = {path.relative_to(TOP / "docs").with_suffix("").as_posix() for path in DOCS}
    assert pages - {"index"} <= linked


def _a_page_has_every_field_of_a_record(
    page: Path, heading: str, record: type[msgspec.Struct]
) -> None:
    text = page.read_text(encoding="utf-8")
    _, found, section = text.partition(f'id="{heading}"')
    section = section.partition("<section ")[0]
    assert found
    for field in record.__struct_fields__:
        assert f'<span class="pre">{field}</span>' in section, field
    assert "<p>anything" not in text
