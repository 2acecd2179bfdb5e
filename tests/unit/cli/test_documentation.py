"""The documents name existing commands, exit codes, topics, targets and files."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from importlib.metadata import distribution
from importlib.util import find_spec
from io import StringIO
from itertools import chain

import pytest
from kafka.cli.admin import main_parser

from bench import PARTS
from streams.cli.main import main, parse
from streams.config import Config
from streams.store.layout import KEYS, key_of
from tests.integration.test_other_programs import PROGRAMS
from tests.readme import DOCUMENTS, TOP, blocks, blocks_of_an_example, commands

VENV = re.findall(r"^VENV +:= (\S+)", (TOP / "Makefile").read_text(), re.MULTILINE)[0]
# A command in a code span: its words up to the first option or capital, and its options.
COMMAND = re.compile(r"`turnstile ([a-z\\|. ]+)([^`]*)`")


def named_commands(text: str) -> set[tuple[str, str]]:
    """(command, option or nothing) for every command that is named, `a|b` being two."""
    found = set()
    for words, rest in COMMAND.findall(text):
        stems = [""]
        for word in words.split():
            stems = [f"{stem} {one}".strip() for stem in stems for one in word.split("\\|")]
        found |= {
            (stem, option) for stem in stems for option in ["", *re.findall(r"--[a-z-]+", rest)]
        }
    return found


@cache
def help_of(command: str) -> str:
    """What ``--help`` of a command says."""
    with redirect_stdout(StringIO()) as said, pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    assert end.value.code == 0, command
    return said.getvalue()


def test_documented_commands_and_options_exist() -> None:
    for path in DOCUMENTS:
        for command, option in named_commands(path.read_text(encoding="utf-8")):
            assert option in help_of(command), (path, command, option)


def test_documented_make_targets_exist() -> None:
    there = set(re.findall(r"^([a-z]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        assert set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE)) <= there, path


def test_documented_programs_and_parts_of_benchmarks_exist() -> None:
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"python -m ((?:bench|tests)[\w.]*)", text):
            assert find_spec(name), (path, name)
        parts = re.findall(r"(?:python -m bench |`)--only ([a-z]+)", text)
        assert set(parts) <= set(PARTS), path


def test_the_procedure_to_rebuild_a_partition_deletes_its_keys() -> None:
    runbooks = (TOP / "docs" / "operate" / "runbooks.md").read_text(encoding="utf-8")
    deleted = set(re.findall(r"'(turnstile\.\{norms-3\}:[a-z-]+)'", runbooks))
    assert deleted == {key_of(Config().prefix, 3, name) for name in KEYS}


def test_every_code_block_has_a_tested_language() -> None:
    for path in DOCUMENTS:
        fenced = path.read_text(encoding="utf-8").split("```")[1::2]
        kinds = {block.partition("\n")[0] for block in fenced}
        # Blocks without a language and Mermaid are pictures, and consoles show output.
        shown = {"console"} if path.name in ("audit.md", "gateway.md") else {"mermaid"}
        # Those in braces are directives, which building the site runs.
        kinds = {kind for kind in kinds if not kind.startswith("{")}
        assert kinds <= {"python", "sh", "", *shown}, path


def test_documented_python_parses_and_imports() -> None:
    for block in chain.from_iterable(blocks(path.read_text("utf-8")) for path in DOCUMENTS):
        tree = ast.parse(block)
        if "PrivacyEngine" in block or "from torch" in block:  # the tests of the trainers run it
            continue
        if block in blocks_of_an_example():  # its tests run it
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    import_module(name.name)
            elif isinstance(node, ast.ImportFrom):
                module = import_module(node.module or "")
                assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


SHELL = [
    pytest.param(command, id=" ".join(command))
    for path in DOCUMENTS
    for command in commands(path.read_text(encoding="utf-8"))
]


@pytest.mark.process
@pytest.mark.parametrize("command", SHELL)
def test_documented_shell_commands_parse(command) -> None:
    """What make would run is made out and not run; the command line only reads its arguments."""
    match command:
        case ["make", *arguments]:
            make = ["make", "--dry-run", "--directory", str(TOP), *arguments]
            told = subprocess.run(make, capture_output=True, text=True)
            assert told.returncode == 0, told.stderr
            for argument in arguments:
                for path in re.findall(r"\btests/[\w/]+(?:\.py)?", argument):
                    assert (TOP / path).exists(), path
        case ["turnstile", *arguments]:
            parse(arguments)
        case ["docker", "compose", verb, *_]:  # no container engine is needed to test this
            assert verb in {"up", "down", "logs"}
        case ["docker", "tag" | "push", *images]:  # test_image compares their tags
            assert all("dp-turnstile:" in image for image in images)
        case ["python", "-m", "kafka.admin", *arguments]:
            main_parser().parse_args(arguments)
        case ["python", "-m", "pip", "install", "-e", clone]:
            project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
            assert clone.removeprefix(".[").removesuffix("]") in project["optional-dependencies"]
        case ["pip", "install", clone]:
            project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
            assert set(re.findall(r"\w+", clone)) <= set(project["optional-dependencies"])
        case ["python3", "-m", "venv", folder, "&&", ".", activate]:
            assert activate == f"{folder}/bin/activate"
        case ["python", "-m", "pip", "install", *packages]:  # the other tests need them, too
            assert all(distribution(package) for package in packages)
        case ["python", script, ">", _]:  # the tests of the examples run it
            assert (TOP / script).exists()
        case [
            "kafka-console-producer.sh" | "kafka-console-consumer.sh" | "connect-standalone.sh",
            *_,
        ]:
            assert command[0] in PROGRAMS  # test_other_programs runs the page's commands
        case ["mvn", *arguments]:  # test_other_programs runs it
            assert arguments
        case ["curl", *arguments]:  # the tests of the gateway run the page
            assert arguments
        case ["kubectl", "apply", "-k", folder]:  # test_kubernetes builds it
            assert folder in ("deploy/kubernetes/overlays/mine", "OVERLAY") or (
                (TOP / folder / "kustomization.yaml").exists()
            )
        case ["kubectl", *arguments]:
            assert {"create", "patch", "rollout"} & {*arguments}
        case ["docker", "run", *_, "-c", program]:
            exec(program, {})
        case ["for", _, "in", *_] | ["done"]:
            pass
        case [".", activate]:
            assert activate == f"{VENV}/bin/activate"
        case _:
            pytest.fail(f"nothing tests {command}")
