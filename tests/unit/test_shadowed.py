"""A package of another origin in the place of ours is named by the error of the import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readme import TOP


def imported(statement: str, *folders: Path) -> str:
    """Return the last line on standard error of a statement; empty if it succeeds."""
    path = os.pathsep.join(map(str, folders))
    done = subprocess.run(
        [sys.executable, "-c", statement],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        cwd=os.sep,
    )
    return "".join(done.stderr.splitlines()[-1:])


@pytest.mark.process
@pytest.mark.parametrize("name", ["accounting/__init__.py", "accounting.py"])
@pytest.mark.parametrize("statement", ["from streams import Turnstile", "import streams.cli"])
def test_import_names_another_accounting_package(name: str, statement: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("LEDGER = {}\n")
    error = imported(statement, tmp_path, TOP)
    assert error.startswith("ImportError: ")
    assert str(file) in error


@pytest.mark.process
def test_import_names_a_folder_in_the_place_of_a_missing_package(tmp_path: Path) -> None:
    (tmp_path / "accounting").mkdir()
    (tmp_path / "streams").symlink_to(TOP / "streams")
    # An editable installation puts the folder of the real package on the path.
    without = f"import sys; sys.path = [p for p in sys.path if p != {str(TOP)!r}]"
    error = imported(f"{without}; import streams", tmp_path)
    assert error.startswith("ImportError: ")
    assert str(tmp_path / "accounting") in error


@pytest.mark.process
def test_import_names_another_streams_package(tmp_path: Path) -> None:
    (tmp_path / "streams.py").write_text("FLOWS = {}\n")
    error = imported("from streams import Turnstile", tmp_path, TOP)
    assert str(tmp_path / "streams.py") in error
