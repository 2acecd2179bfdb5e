"""Every block of Python of the documentation is run, as it stands there and in its order."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import numpy as np
import pytest

from tests.readme import BLOCKS, DOCS, TOP, blocks, page

# Those that need nothing that is not on the page. The others are run by those who know what a
# reader brings along (`tests.readme`); `test_every_block_is_run_by_some_test` sees to it that all
# are.
WHOLE = ("federated", "index", "jax", "queries")


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_page_that_is_whole_runs(name: str) -> None:
    names = run(blocks(page(name)))
    if name == "index":
        assert names["d"].admitted.tolist() == [True, True, True]
    elif name == "federated":
        # As many as a filter by itself admits: rho = 1 / (2 * 25) each.
        assert 0 < names["rounds"] < 100
        assert sum(names["stored"]) / 2**44 == pytest.approx(names["rounds"] / 25)
    elif name == "queries":
        assert abs(float(names["answer"].value) - len(names["buyers"])) < 60
    else:
        assert names["accuracy"] > 0.8
        assert names["private"].step == 40


@pytest.mark.slow
def test_the_tutorial_trains_in_this_process_and_shows_what_it_has_cost() -> None:
    in_memory, looking, over_kafka = blocks(page("tutorial"))
    names = run([in_memory, looking])
    assert names["accuracy"] > 0.75
    assert len(names["spent"]) == 1400
    assert 0 < names["spent"][7] <= 1
    assert np.median(list(names["spent"].values())) < 1
    assert not list(names["t"].halts("digits", follow=False))
    assert 'Turnstile("localhost:9092")' in over_kafka  # tests/integration runs it


def test_norms_of_what_is_charged_are_rounded_up_in_every_block() -> None:
    """``np.linalg.norm`` may be below the norm, and what is clipped by it longer than charged."""
    every = [block for path in DOCS for block in blocks(path.read_text(encoding="utf-8"))]
    charging = [block for block in every if "charge(" in block or "clip_" in block]
    assert len(charging) > 5
    assert not [block for block in charging if "linalg.norm" in block]


def test_every_block_is_run_by_some_test() -> None:
    here = {*WHOLE, "tutorial"}
    assert here.isdisjoint(BLOCKS)
    with_blocks = {path.stem for path in DOCS if blocks(path.read_text(encoding="utf-8"))}
    assert with_blocks == here | set(BLOCKS)


def test_the_citation_has_the_version_of_the_package() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (TOP / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [project["version"]]


def run(parts: list[str]) -> dict[str, Any]:
    """What is there after blocks that follow one another."""
    names: dict[str, Any] = {}
    for part in parts:
        exec(part, names)
    return names
