"""Committed files that are generated are current."""

from __future__ import annotations

import pytest

from docs.generated import FILES, TOP


@pytest.mark.parametrize("name", FILES)
def test_a_committed_file_is_the_generated_one(name: str) -> None:
    stored = (TOP / name).read_text(encoding="utf-8")
    assert stored == FILES[name](), f"run `make reference`, which writes {name}"
