"""The check for plain English finds its phrases in code and in documentation, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import plain_english

CODE = '''
"""Of a partition."""

LIMIT = 3
"""What a record may hold."""


def closed(name):
    """Return the run."""
    # whoever closes it
    raise KeyError(f"{name} is put back")
'''


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plain_english, "TOP", tmp_path)
    return tmp_path


def lines(path: Path, text: str) -> list[int]:
    path.write_text(text)
    return sorted({found.line for found in plain_english.phrases_of(path)})


def test_docstrings_comments_and_strings_are_checked(top: Path) -> None:
    assert lines(top / "code.py", CODE) == [2, 5, 10, 11]


def test_names_of_code_are_not_checked(top: Path) -> None:
    assert lines(top / "code.py", "def mend(nobody):\n    return nobody\n") == []


def test_pages_are_checked_outside_of_code(top: Path) -> None:
    page = "Nobody reads it.\n`nobody`\n```sh\necho nobody\n```\nWho asks is told.\nWho asks?\n"
    assert lines(top / "page.md", page) == [1, 6]
