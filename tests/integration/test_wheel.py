"""The wheel: its contents, and that it runs without the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.readme import TOP


def run(command: Sequence[object], cwd: Path) -> str:
    """Return the output of a command, with only PATH of this environment."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "PIP_NO_INDEX": "1"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheel")


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    """Build the wheel from a source distribution, so that a file missing in either is noticed."""
    source = folder / "source"
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in ("accounting", "streams", "deploy"):
        shutil.copytree(TOP / part, source / part, symlinks=True, ignore=left_out)
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TOP / part, source)
    build = "import setuptools.build_meta as b, sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    run([sys.executable, "-c", build, "build_sdist", folder], source)
    (archive,) = folder.glob("*.tar.gz")
    run(["tar", "-xzf", archive], folder)
    unpacked = folder / archive.name.removesuffix(".tar.gz")
    run([sys.executable, "-c", build, "build_wheel", folder], unpacked)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare(wheel: Path, folder: Path) -> Path:
    """Create an environment with the wheel and the packages that it requires, and no others."""
    venv.create(folder / "bare", with_pip=False)
    found = folder / "bare" / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", found, "install", "--no-deps", wheel], folder)
    (site,) = (folder / "bare").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        wanted = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    queue = [(Requirement(line), "") for line in wanted]
    for requirement, extra in queue:  # which grows meanwhile
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        installed = distribution(requirement.name)
        queue += [
            (Requirement(line), extra)
            for line in installed.requires or ()
            for extra in requirement.extras or {""}
        ]
        for top in {path.parts[0] for path in installed.files or () if ".." not in path.parts}:
            if not (site / top).exists():
                (site / top).symlink_to(str(installed.locate_file(top)))
    return found


CLIENT = """
import os
from streams import Turnstile
with Turnstile.open("budgets.db") as t:
    t.create_dataset("d", measure="zcdp", budget=1.0)
    run = t.run("d", "r")
    for _ in range(9):
        decision = run.charge([1, 2], [0.5, 0.1], noise_stddev=1.0)
    print(decision.admitted.tolist(), [halt.user for halt in t.halts("d", follow=False)])
try:
    Turnstile("127.0.0.1:1", timeout=1.0).run("d", "r")
except Exception as error:
    print(type(error).__name__)
"""


QUERIES = """
dataset = "d"
run = "daily"
[input]
user = "user"
time = "day"
start = 2026-01-01
end = 2026-01-04
[[query]]
name = "users"
kind = "distinct"
window = "1d"
noise = 100.0
"""


def test_a_client_needs_seven_packages(bare: Path, folder: Path) -> None:
    assert run([bare, "-c", CLIENT], folder) == "[False, True] [1]\nServiceUnavailable\n"
    turnstile = bare.with_name("turnstile")
    assert "halts" in run([turnstile, "--help"], folder)
    (folder / "daily.toml").write_text(QUERIES)
    (folder / "daily.csv").write_text("user,day\n1,2026-01-01\n1,2026-01-03\n")
    answer = "answer daily.toml --input daily.csv --take-over"
    for words in (
        *(answer, "answers d", "verify", "halts", "odometer --delta 1e-5", "dataset list", "runs"),
        *("report d", "balance d --user 1"),
    ):
        command, *others = words.split()
        run([turnstile, command, *others, "--budgets", "budgets.db"], folder)


def test_commands_name_the_extra_that_they_need(bare: Path, folder: Path) -> None:
    for command in ("worker", "dashboard", "doctor", "verify"):
        done = subprocess.run(
            [bare.with_name("turnstile"), command], cwd=folder, capture_output=True, text=True
        )
        assert done.returncode == 2
        assert "with its extra `service`" in done.stderr
        assert ("--budgets FILE" in done.stderr) == (command == "verify")


def test_the_wheel_contains_all_files_that_are_not_python(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        described = archive.read("streams/asyncapi.yaml")
        (license_file,) = (name for name in names if name.endswith("licenses/LICENSE"))
        text = archive.read(license_file).decode()
    assert described == (TOP / "deploy" / "asyncapi.yaml").read_bytes()
    assert "Apache License" in text
    assert "TERMS AND CONDITIONS" in text
    assert {"accounting/py.typed", "streams/py.typed"} <= names
    scripts = {
        f"streams/store/lua/{path.name}" for path in (TOP / "streams" / "store" / "lua").iterdir()
    }
    assert scripts <= names
    assert not any(name.startswith(("bench", "tests")) for name in names)
