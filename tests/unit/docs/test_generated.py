"""Committed files that are generated are current."""

from __future__ import annotations

import importlib

import pytest

from docs.generated import FILES, TOP
from docs.python_pages import PAGES


@pytest.mark.parametrize("name", FILES)
def test_a_committed_file_is_the_generated_one(name: str) -> None:
    stored = (TOP / name).read_text(encoding="utf-8")
    assert stored == FILES[name](), f"run `make reference`, which writes {name}"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_about_a_package_has_all_its_public_names(name: str) -> None:
    shown = PAGES[name]
    public = set(importlib.import_module(shown.package).__all__) - shown.without
    assert public <= {one for _, one in shown.names()}
    text = (TOP / name).read_text(encoding="utf-8")
    assert all(f"\n### {one}\n" in text for one in public)
