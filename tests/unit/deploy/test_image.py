"""The Dockerfile, held against what the package needs. The image itself is not built here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from tests.readme import DOCUMENTS, TOP

PYPROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())
COMPOSE = yaml.safe_load((TOP / "docker-compose.yml").read_text())


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments), continued lines joined and comments left out."""
    text = (TOP / "deploy" / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (word.upper(), " ".join(rest.split()))
        for word, _, rest in (line.strip().partition(" ") for line in joined.splitlines() if line)
    ]


def arguments(instruction: str) -> list[str]:
    return [rest for word, rest in instructions() if word == instruction]


def copied() -> set[str]:
    """What comes from the build context."""
    return {
        source
        for rest in arguments("COPY")
        if not rest.startswith("--from=")
        for source in rest.split()[:-1]
    }


def kept(path: str) -> bool:
    """Whether .dockerignore lets a top-level path through: the last line that matches decides."""
    ignored = False
    for line in (TOP / ".dockerignore").read_text().splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#") and pattern.lstrip("!") in ("*", path):
            ignored = not pattern.startswith("!")
    return not ignored


def test_both_stages_have_one_base_that_can_be_given() -> None:
    (argument,) = arguments("ARG")
    name, _, base = argument.partition("=")
    assert {rest.split()[0] for rest in arguments("FROM")} == {f"${{{name}}}"}
    assert COMPOSE["services"]["worker"]["build"]["args"] == {name: f"${{{name}:-{base}}}"}
    major, minor = re.fullmatch(
        r"python:(\d+)\.(\d+)-slim-[a-z]+@sha256:[0-9a-f]{64}", base
    ).groups()
    least = re.fullmatch(r">=(\d+)\.(\d+)", PYPROJECT["project"]["requires-python"])
    assert (int(major), int(minor)) >= tuple(map(int, least.groups()))


def made(folder: Path, *arguments: str, docker: str) -> bool:
    """Run make with a stand-in for docker, and return whether it succeeded."""
    program = folder / "docker"
    program.write_text(f"#!/bin/sh\n{docker}\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.defpath}"}
    command = ["make", "-C", str(TOP), *arguments]
    return not subprocess.run(command, capture_output=True, env=environment, check=False).returncode


@pytest.mark.process
@pytest.mark.parametrize(
    ("base", "is_built"),
    [("", False), ("python:3.11", False), (f"python:3.11@sha256:{'0' * 64}", True)],
)
def test_published_image_needs_a_base_with_a_digest(
    base: str, is_built: bool, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    docker = f"echo $@ > {asked}"
    assert made(tmp_path, "image", f"PYTHON_IMAGE={base}", docker=docker) == is_built
    assert asked.exists() == is_built
    assert not is_built or f"--build-arg PYTHON_IMAGE={base}" in asked.read_text()


@pytest.mark.process
@pytest.mark.parametrize("digest", [f"sha256:{'1' * 64}", ""])
def test_pin_writes_the_digests_that_the_registry_gives(digest: str, tmp_path: Path) -> None:
    files = [tmp_path / "compose", tmp_path / "Dockerfile"]
    images = "KAFKA_IMAGE:-apache/kafka:4.3.0@{0}}}\nredis:7.2-alpine@{0}\n"
    before = images.format(f"sha256:{'0' * 64}")
    for file in files:
        file.write_text(before)
    pinned = f"PINNED={' '.join(map(str, files))}"
    assert made(tmp_path, "pin", pinned, docker=f"echo {digest}") == bool(digest)
    after = images.format(digest) if digest else before
    assert [file.read_text() for file in files] == [after, after]


def test_every_file_names_the_image_with_this_version() -> None:
    files = [TOP / "docker-compose.yml", *DOCUMENTS, *(TOP / "deploy").rglob("*.yaml")]
    tag = re.compile(
        r"\bdp-turnstile:(\S+)|^ +newTag: \"(.*?)\"|^ +image: (dp-turnstile)$", re.MULTILINE
    )
    tags = {
        found[1] or found[2] or "none"
        for file in files
        for found in tag.finditer(file.read_text(encoding="utf-8"))
    }
    assert tags == {PYPROJECT["project"]["version"]}


def test_the_builder_is_given_all_that_the_package_is_made_of() -> None:
    packages = {
        pattern.rstrip("*")
        for pattern in PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    linked = {
        str(file.resolve().relative_to(TOP))
        for package in packages
        for file in (TOP / package).rglob("*")
        if file.is_symlink()
    }
    project = PYPROJECT["project"]
    locked = {"requirements/worker.txt", "requirements/build.txt"}
    files = {"pyproject.toml", project["readme"], *project["license-files"], *linked, *locked}
    assert copied() == {*files, *packages}
    for path in copied():
        assert (TOP / path).exists(), f"{path} does not exist"
        assert kept(path), f".dockerignore hides {path}"


def test_nothing_else_reaches_the_builder() -> None:
    assert not any(map(kept, (".git", ".venv", "tests", ".hypothesis", "out", "deploy")))


def test_files_that_are_not_python_are_package_data() -> None:
    data = PYPROJECT["tool"]["setuptools"]["package-data"]
    for package, patterns in data.items():
        matched = {file for pattern in patterns for file in (TOP / package).glob(pattern)}
        others = {
            file
            for file in (TOP / package).rglob("*")
            if file.is_file() and file.suffix not in (".py", ".pyc")
        }
        assert others <= matched, f"not package data: {others - matched}"
    assert list((TOP / "streams").rglob("*.lua"))


def test_nothing_is_installed_but_what_is_locked_and_the_package() -> None:
    commands = [command.strip() for rest in arguments("RUN") for command in rest.split("&&")]
    pips = [command for command in commands if "/pip " in command]
    assert len(pips) == 4
    for command in pips:
        is_locked = "--require-hashes" in command and "--only-binary :all:" in command
        assert is_locked or "--no-deps" in command
        assert "--no-index" in command or "--no-build-isolation" in command or is_locked
    assert "requirements/worker.txt" in next(c for c in pips if c.startswith("/opt/turnstile"))


def test_container_does_not_run_as_root() -> None:
    words = [word for word, _ in instructions()]
    user, group = arguments("USER")[-1].split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert words.index("USER") > max(i for i, word in enumerate(words) if word in ("RUN", "COPY"))
    assert any(f"--uid {user}" in rest and f"--gid {group}" in rest for rest in arguments("RUN"))


def test_command_of_the_image_is_one_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    entrypoint, command = (json.loads(arguments(word)[-1]) for word in ("ENTRYPOINT", "CMD"))
    assert command == COMPOSE["services"]["worker"]["command"]
    module, _, function = PYPROJECT["project"]["scripts"][entrypoint[0]].partition(":")
    run = getattr(import_module(module), function)
    with pytest.raises(SystemExit) as end:
        run([*entrypoint[1:], *command, "--help"])
    assert end.value.code == 0
    assert "usage: turnstile worker" in capsys.readouterr().out
