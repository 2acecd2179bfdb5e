"""Every block of Python of the documentation is run, as it stands there and in its order."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streams.cli.main import main
from tests.readme import BLOCKS, DOCS, TOP, blocks, page

# Those that need nothing that is not on the page. The others are run by those who know what a
# reader brings along (`tests.readme`); `test_every_block_is_run_by_some_test` sees to it that all
# are.
WHOLE = ("train/federated", "train/jax")


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_page_that_is_whole_runs(name: str) -> None:
    names = run(blocks(page(name)))
    if name == "train/federated":
        # As many as a filter by itself admits: rho = 1 / (2 * 25) each.
        assert 0 < names["rounds"] < 100
        assert sum(names["stored"]) / 2**44 == pytest.approx(names["rounds"] / 25)
    else:
        assert names["accuracy"] > 0.8
        assert names["private"].step == 40


@pytest.mark.slow
def test_queries_from_a_program_are_answered() -> None:
    names = run(blocks(page("query/python"))[:1])
    assert abs(float(names["answer"].value) - len(names["buyers"])) < 60


@pytest.mark.slow
def test_events_in_a_data_frame_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(blocks(page("query/python"))[2:3])
    assert [row.start.day for row in names["answers"]] == list(range(1, 8))
    again = names["answer_table"](names["queries"], names["purchases"], budgets="budgets.db")
    assert again == names["answers"]


def test_all_windows_of_a_file_are_answered_at_once() -> None:
    names = run(blocks(page("query/python"))[3:4])
    sums = names["bought"].sum(axis=0)
    assert names["totals"].value.shape == sums.shape
    assert np.abs(names["totals"].value - sums).max() < 6 * names["totals"].noise_stddev
    assert (names["once"].last_charge.decision.admitted).all()


@pytest.mark.slow
def test_the_first_tutorial_trains_twice_and_leaves_a_budget_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(blocks(page("get-started/training")))
    spent = names["spent"]
    assert [spent[person] for person in (7, 500, 1399)] == [0.5, 1.0, 0.5]
    assert len(spent) == names["persons"][:1400].size
    assert not list(names["t"].halts("digits", follow=False))
    january, february = (float(rate) for rate in re.findall(r": (\d+)%", capsys.readouterr().out))
    assert min(january, february) > 60
    names["t"].close()
    assert main(["verify", "--budgets", "digits.db"]) == 0


def test_norms_of_what_is_charged_are_rounded_up_in_every_block() -> None:
    """``np.linalg.norm`` may be below the norm, and what is clipped by it longer than charged."""
    every = [block for path in DOCS for block in blocks(path.read_text(encoding="utf-8"))]
    charging = [block for block in every if "charge(" in block or "clip_" in block]
    assert len(charging) > 5
    assert not [block for block in charging if "linalg.norm" in block]


def test_every_block_is_run_by_some_test() -> None:
    here = {*WHOLE, "get-started/training"}
    assert here.isdisjoint(BLOCKS)
    with_blocks = {name_of(path) for path in DOCS if blocks(path.read_text(encoding="utf-8"))}
    assert with_blocks == here | set(BLOCKS)


def test_the_citation_has_the_version_of_the_package() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (TOP / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [project["version"]]


def name_of(path: Path) -> str:
    """Return the name of a page, as ``page`` takes it."""
    return path.relative_to(TOP / "docs").with_suffix("").as_posix()


def run(parts: list[str]) -> dict[str, Any]:
    """What is there after blocks that follow one another."""
    names: dict[str, Any] = {}
    for part in parts:
        exec(part, names)
    return names
