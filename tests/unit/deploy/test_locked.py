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
    extras = ["secure"] if name == "worker" else ["dev"]
    while extras:
        for requirement in map(Requirement, EXTRAS[extras.pop()]):
            if requirement.name == "dp-turnstile":
                extras += sorted(requirement.extras)
            else:
                wanted.append(str(requirement))
    return [Requirement(line) for line in wanted]


@pytest.mark.parametrize("name", FILES)
def test_all_that_is_asked_for_is_locked_within_its_bounds(name: str) -> None:
    found = locked(name)
    for requirement in asked_for(name):
        if requirement.marker and not requirement.marker.evaluate():
            continue
        version, _ = found[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), requirement


@pytest.mark.parametrize("name", FILES)
def test_every_package_is_locked_by_hash(name: str) -> None:
    found = locked(name)
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
    said = [line for line in lines if not line.lstrip().startswith(("--hash=sha256:", "#"))]
    assert not [line for line in said if "://" in line or line.startswith("-")]
    assert not [line for line in lines if "://" in line]


FOUND = {"id": "V-1", "fix_versions": ["2.0"]}
AUDITS: list[tuple[str, int, str]] = [
    (json.dumps({"dependencies": []}), 0, "NOT audited, the service knows none of its 0 packages"),
    (
        json.dumps({"dependencies": [{"name": "a", "skip_reason": "not found"}]}),
        0,
        "NOT audited, the service knows none of its 1 packages",
    ),
    (
        json.dumps({"dependencies": [{"name": "a", "version": "1.0", "vulns": []}]}),
        0,
        "0 found in 1 packages, 0 were not audited",
    ),
    (
        json.dumps({"dependencies": [{"name": "a", "version": "1.0", "vulns": [FOUND]}]}),
        1,
        "a 1.0: V-1, mended in 2.0",
    ),
    ("", 0, "NOT audited, the service cannot be reached: no network"),
]


@pytest.mark.process
@pytest.mark.parametrize(("said", "code", "line"), AUDITS)
def test_an_audit_says_what_was_found_and_what_was_not_looked_at(
    tmp_path: Path, said: str, code: int, line: str
) -> None:
    program = tmp_path / "pip-audit"
    program.write_text(f"#!{sys.executable}\nimport sys\nprint({said!r})\nsys.exit('no network')\n")
    program.chmod(0o755)
    command: list[Any] = [sys.executable, FOLDER / "audit.py", program, FOLDER / "build.txt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert line in done.stdout
