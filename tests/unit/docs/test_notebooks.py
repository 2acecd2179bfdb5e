"""Every notebook runs from its first cell to its last; stored outputs are those of its cells."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nightly import YEAR_OF_ANSWERS
from tests.readme import TOP, page

NOTEBOOKS = sorted(YEAR_OF_ANSWERS.parent.glob("*.ipynb"))
LARGEST = 300_000


def run(path: Path) -> subprocess.CompletedProcess[str]:
    """Run a notebook in a process of its own: it sets up matplotlib as it likes."""
    command = [sys.executable, "-m", "tests.notebooks", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=TOP)


def code_cells(path: Path) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    "path",
    [path for path in NOTEBOOKS if path != YEAR_OF_ANSWERS],  # the nightly lane runs that one
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_and_gives_its_stored_outputs(path: Path) -> None:
    shown = run(path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_small_and_has_the_outputs_of_one_run(path: Path) -> None:
    assert path.stat().st_size < LARGEST
    cells = code_cells(path)
    counts = [cell["execution_count"] for cell in cells]
    if any(cell["outputs"] for cell in cells):
        assert counts == list(range(1, len(cells) + 1))
    else:
        assert counts == [None] * len(cells)


def test_the_plan_in_the_notebook_is_that_of_the_tutorial() -> None:
    cells = code_cells(YEAR_OF_ANSWERS)
    stored = ["".join(output.get("text", [])) for cell in cells for output in cell["outputs"]]
    (plan,) = [text for text in stored if "active_windows" in text]
    tutorial = page("get-started/statistics").split("```")
    (shown,) = [block for block in tutorial if block.startswith("\nactive_windows")]
    lines = [line for line in shown.splitlines() if line not in ("", "...")]
    assert len(lines) > 5
    assert set(lines) <= set(plan.splitlines())


def test_there_are_notebooks_with_and_without_outputs() -> None:
    has_outputs = {any(cell["outputs"] for cell in code_cells(path)) for path in NOTEBOOKS}
    assert has_outputs == {True, False}


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    ("stored", "tags", "code"), [("2\n", [], 0), ("3\n", [], 1), ("3\n", ["noisy"], 0)]
)
def test_another_text_than_the_stored_one_is_noticed(
    stored: str, tags: list[str], code: int, tmp_path: Path
) -> None:
    output = {"name": "stdout", "output_type": "stream", "text": [stored]}
    cell = {
        "cell_type": "code",
        "source": ["print(1 + 1)"],
        "metadata": {"tags": tags},
        "outputs": [output],
        "execution_count": 1,
    }
    path = tmp_path / "one.ipynb"
    path.write_text(json.dumps({"cells": [cell]}))
    assert run(path).returncode == code
