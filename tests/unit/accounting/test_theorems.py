"""Pages name code, tests and sources that exist, and their examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from runpy import run_path
from typing import NamedTuple

import numpy as np
import pytest

import accounting
from tests.readme import (
    TOP,
    blocks,
    blocks_of_a_file,
    blocks_of_a_subscriber,
    blocks_of_an_example,
    blocks_of_epochs,
    blocks_of_sampled_training,
    blocks_of_several_datasets,
    blocks_of_the_library,
    blocks_of_the_service,
)

TESTS = Path(__file__).parent
PAGES = TOP / "docs" / "research"
GROUPS = ("mechanisms", "filters", "odometers", "reports", "release")
EVIDENCE = TOP / "accounting" / "THEOREMS.md"
NAMED = [*PAGES.glob("*.md"), EVIDENCE, TOP / "docs" / "guarantees.md"]
SOURCES = ("Published: ", "New here, not peer reviewed: ", "Standard: ", "Heuristic, tested.")


class Theorem(NamedTuple):
    """A section of a page: its title, its statement, and its fields by name."""

    title: str
    statement: str
    fields: dict[str, str]


def evidence() -> dict[str, tuple[list[str], list[str]]]:
    """Return the names of code and of tests by theorem."""
    rows = re.findall(
        r"^\| \[(.*?)\]\(\S+\) \| (.*) \| (.*) \|$", EVIDENCE.read_text("utf-8"), flags=re.M
    )
    found = {
        title: (re.findall(r"`([^`]+)`", code), re.findall(r"`([^`]+)`", tests))
        for title, code, tests in rows
    }
    assert len(found) == len(rows)
    return found


def theorems() -> list[Theorem]:
    found = []
    for group in GROUPS:
        _, *sections = re.split(r"^## ", (PAGES / f"{group}.md").read_text("utf-8"), flags=re.M)
        for section in sections:
            title, _, text = section.partition("\n")
            statement, *items = re.split(r"^- \*\*", text, flags=re.M)
            fields = dict(re.split(r":\*\*\s+", item, maxsplit=1) for item in items)
            found.append(Theorem(title, statement.strip(), fields))
    return found


@pytest.mark.parametrize("theorem", theorems(), ids=lambda theorem: theorem.title)
def test_every_theorem_has_functions_and_tests_that_exist(theorem: Theorem) -> None:
    assert theorem.statement
    assert list(theorem.fields) == ["Condition", "Source"]
    assert theorem.fields["Source"].startswith(SOURCES)
    functions, tests = evidence()[theorem.title]
    assert functions
    assert tests
    for name in functions:
        example, _, defined = name.partition("::")
        if defined:
            assert callable(run_path(str(TOP / example))[defined]), name
        else:
            where = name if name.startswith("streams.") else f"accounting.{name}"
            module, _, defined = where.rpartition(".")
            source = TOP / f"{module.replace('.', '/')}.py"
            if source.exists() and "\nimport torch\n" in source.read_text(encoding="utf-8"):
                assert f"\nclass {defined}" in source.read_text(encoding="utf-8"), name
            else:
                assert callable(resolve_name(where)), name
    for name in tests:
        file, _, function = name.partition("::")
        assert f"def {function}(" in (TESTS / file).read_text(encoding="utf-8"), name


def test_every_theorem_has_one_anchor_and_one_row_of_evidence() -> None:
    titles = [theorem.title for theorem in theorems()]
    assert len(titles) > 50
    assert titles == list(evidence())


def test_every_new_result_has_a_proof() -> None:
    """A heading of the pages is the name of its theorem in the file of the proofs."""
    source = (PAGES / "theorems.tex").read_text(encoding="utf-8").replace(r"\'e", "é")
    proven = set(re.findall(r"\\begin\{(?:theorem|proposition)\}\[([^]]+)\]", source))
    pages = "".join(path.read_text(encoding="utf-8") for path in PAGES.glob("*.md"))
    assert proven <= set(re.findall(r"^#+ (.*)$", pages, flags=re.M))
    entries = [one for one in theorems() if "[proof](theorems.tex)" in one.fields["Source"]]
    assert {entry.title for entry in entries} <= proven


def test_proofs_refer_to_theorems_and_papers_that_exist() -> None:
    """No TeX is needed to run this."""
    source = (PAGES / "theorems.tex").read_text(encoding="utf-8")
    for use, definition in (("ref", "label"), ("cite", "bibitem")):
        named = re.findall(rf"\\{use}{{([^}}]+)}}", source)
        used = {name for names in named for name in names.split(",")}
        assert used
        assert used <= set(re.findall(rf"\\{definition}{{([^}}]+)}}", source))
    begun, ended = (re.findall(rf"\\{word}{{(\w+)}}", source) for word in ("begin", "end"))
    assert sorted(begun) == sorted(ended)


@pytest.mark.parametrize("page", NAMED, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file, function in re.findall(r"`([\w./]+\.py)::(test_\w+)`", text):
        found = TESTS / file if (TESTS / file).exists() else TOP / file
        assert f"def {function}(" in found.read_text(encoding="utf-8"), function


@pytest.mark.parametrize("page", NAMED, ids=lambda page: page.name)
def test_formulas_do_not_cross_lines(page: Path) -> None:
    """GitHub shows a formula in a line only if both of its signs are in that line."""
    for line in page.read_text(encoding="utf-8").splitlines():
        assert re.sub(r"`[^`]*`|\$\$", "", line).count("$") % 2 == 0, line


def test_every_name_that_is_exported_exists() -> None:
    assert sorted(accounting.__all__) == sorted(set(accounting.__all__))
    assert set(accounting.__all__) <= set(dir(accounting))
    assert not hasattr(accounting, "no_such_name")
    for name in accounting.__all__:
        assert hasattr(accounting, name)


@pytest.mark.process
def test_filters_import_no_report_and_no_special_function() -> None:
    code = (
        "import sys; from accounting import MEASURES, GdpFilter, ZcdpFilter\n"
        "MEASURES['gdp'].filter_of([2**44])\n"
        "print({'accounting.reports', 'scipy.special', 'scipy.optimize'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=TOP, check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "set()"


def test_every_example_is_run_by_some_test() -> None:
    """By those who know what each needs: here, with the trainers, and with the service."""
    run = [*blocks_of_the_library(), *blocks_of_the_service(), *blocks_of_sampled_training()]
    run += blocks_of_a_subscriber() + blocks_of_a_file() + blocks_of_an_example()
    run += blocks_of_epochs() + blocks_of_several_datasets()
    assert [len(blocks_of_the_library()), len(blocks_of_the_service())] == [1, 2]
    assert sorted(run) == sorted(blocks())


@pytest.mark.slow
def test_the_library_example_runs_and_its_bounds_are_ordered() -> None:
    (example,) = blocks_of_the_library()
    names: dict[str, object] = {}
    exec(example, names)
    lower, estimate, upper = names["epsilon"].bounds
    assert np.all((lower <= estimate) & (estimate <= upper))
    assert np.all(upper < 2.0)  # no user lost more than the noise was chosen for
    assert names["admitted"].all()
