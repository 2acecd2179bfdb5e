from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

import accounting

TABLE = Path(accounting.__file__).with_name("THEOREMS.md")
TESTS = Path(__file__).parent


def rows() -> list[list[str]]:
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["statement", "assumptions", "function", "test"]
    return cells[2:]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_every_row_names_a_function_and_a_test_that_exist(row: list[str]) -> None:
    statement, assumptions, functions, tests = row
    assert statement
    assert assumptions
    for column in (functions, tests):
        assert re.findall(r"`([^`]+)`", column), column
    for name in re.findall(r"`([^`]+)`", functions):
        assert callable(resolve_name(f"accounting.{name}")), name
    for name in re.findall(r"`([^`]+)`", tests):
        file, _, function = name.partition("::")
        assert f"def {function}(" in (TESTS / file).read_text(encoding="utf-8"), name


NAMED = (TABLE, TABLE.with_name("PROOFS.md"), TABLE.parents[1] / "docs" / "guarantees.md")


@pytest.mark.parametrize("page", NAMED, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file, function in re.findall(r"`([\w./]+\.py)::(\w+)`", text):
        found = TESTS / file if (TESTS / file).exists() else TABLE.parents[1] / file
        assert f"def {function}(" in found.read_text(encoding="utf-8"), function


def test_every_name_that_is_exported_exists() -> None:
    assert sorted(accounting.__all__) == sorted(set(accounting.__all__))
    for name in accounting.__all__:
        assert hasattr(accounting, name)
