"""What is locked: all that is asked for, by hash, from nowhere in particular."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.readme import TOP

FOLDER = TOP / "requirements"
PYPROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
FILES = ("worker", "dev", "build")


def locked(name: str) -> dict[str, tuple[str, int]]:
    """By package: its version, and how many hashes there are of it."""
    text = (FOLDER / f"{name}.txt").read_text()
    found = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)
    entries = (re.match(r"([A-Za-z0-9._-]+)==(\S+)", entry) for entry in found)
    return {
        canonicalize_name(match[1]): (match[2], match.string.count("--hash=sha256:"))
        for match in entries
        if match
    }


def asked_for(name: str) -> list[Requirement]:
    if name == "build":
        return [Requirement(line) for line in PYPROJECT["build-system"]["requires"]]
    wanted = list(PYPROJECT["project"]["dependencies"])
    extras = ["secure", "service"] if name == "worker" else ["dev"]
    while extras:
        for requirement in map(Requirement, EXTRAS[extras.pop()]):
            if requirement.name == "dp-turnstile":
                extras += sorted(requirement.extras)
            else:
                wanted.append(str(requirement))
    return [Requirement(line) for line in wanted]


@pytest.mark.parametrize("name", FILES)
def test_requirements_are_locked_within_their_bounds_and_by_hash(name: str) -> None:
    found = locked(name)
    for requirement in asked_for(name):
        version, _ = found[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), requirement
    assert found
    assert all(hashes for _, hashes in found.values())


def test_the_image_has_the_releases_that_are_tested() -> None:
    tested = locked("dev")
    for name in ("worker", "build"):
        for package, (version, _) in locked(name).items():
            assert tested[package][0] == version, package
    assert "cryptography" in locked("worker")  # with which workers sign


@pytest.mark.parametrize("name", FILES)
def test_a_lock_names_no_place_to_get_packages_from(name: str) -> None:
    lines = (FOLDER / f"{name}.txt").read_text().splitlines()
    assert not [line for line in lines if "://" in line or line.startswith("-")]


FOUND = {"id": "V-1", "fix_versions": ["2.0"]}
KNOWN = {"name": "a", "version": "1.0", "vulns": []}
UNKNOWN = {"name": "b", "skip_reason": "not found"}
VULNERABLE = {"name": "c", "version": "1.0", "vulns": [FOUND]}
REPORTS: list[tuple[list[dict[str, Any]] | None, int, int]] = [
    ([KNOWN], 0, 0),
    ([KNOWN, VULNERABLE], 1, 1),
    ([UNKNOWN, VULNERABLE], 1, 1),
    ([KNOWN, UNKNOWN], 3, 0),
    ([], 3, 0),
    (None, 3, 0),
]
"""What pip-audit reports, None if it has no network; the exit code; and with --allow-unaudited."""


@pytest.mark.process
@pytest.mark.parametrize(("report", "code", "allowed"), REPORTS)
def test_an_audit_succeeds_only_if_everything_was_audited(
    tmp_path: Path, report: list[dict[str, Any]] | None, code: int, allowed: int
) -> None:
    program = tmp_path / "pip-audit"
    said = "" if report is None else json.dumps({"dependencies": report})
    program.write_text(f"#!{sys.executable}\nprint({said!r})\n")
    program.chmod(0o755)
    command = [sys.executable, FOLDER / "audit.py", program, FOLDER / "build.txt"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == code
    command.insert(2, "--allow-unaudited")
    assert subprocess.run(command, capture_output=True, check=False).returncode == allowed


@pytest.mark.process
def test_an_audit_asks_about_packages_of_every_python(tmp_path: Path) -> None:
    asked, program = tmp_path / "asked.txt", tmp_path / "pip-audit"
    program.write_text(
        f"#!{sys.executable}\nimport shutil, sys\nshutil.copy(sys.argv[-1], {str(asked)!r})\n"
    )
    program.chmod(0o755)
    command = [sys.executable, FOLDER / "audit.py", program, FOLDER / "dev.txt"]
    subprocess.run(command, capture_output=True, check=False)
    lines = [line for line in asked.read_text().splitlines() if line[:1].isalpha()]
    assert len(lines) == len(locked("dev"))
    assert not [line for line in lines if ";" in line]
