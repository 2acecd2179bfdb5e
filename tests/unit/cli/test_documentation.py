"""What the documents say of commands, exit codes, topics, targets and files is so."""

from __future__ import annotations

import re

import pytest

from streams.cli.main import main
from streams.cli.output import Exit
from streams.topics.topics import HALTS, NORMS, REJECTS, SETTINGS
from tests.readme import README, TOP

DOCUMENTS = sorted(
    path
    for path in [*TOP.glob("*.md"), *TOP.glob("docs/*.md"), *TOP.glob("deploy/*.md")]
    if path.is_file()
)
DAY_MS = 24 * 60 * 60 * 1000
# A command in a code span: its words up to the first option or capital, and its options.
COMMAND = re.compile(r"`turnstile ([a-z\\|. ]+)([^`]*)`")


def commands(text: str) -> set[tuple[str, str]]:
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


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_options_that_are_named_exist(path, capsys) -> None:
    for command, option in commands(path.read_text(encoding="utf-8")):
        with pytest.raises(SystemExit) as end:
            main([*command.split(), "--help"])
        assert end.value.code == 0, command
        assert option in capsys.readouterr().out, (command, option)


def test_every_command_is_in_the_readme(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^    ([a-z]+)  ", capsys.readouterr().out, re.MULTILINE)
    assert len(listed) >= 10
    named = {command.split()[0] for command, _ in commands(README)}
    assert set(listed) <= named


def test_exit_codes_are_the_ones_there_are() -> None:
    (sentence,) = re.findall(r"Exit codes: (.*?interrupted)", README, re.DOTALL)
    assert {int(code) for code in re.findall(r"\b\d+\b", sentence)} == {*Exit, 75}


def test_topics_are_kept_for_as_long_as_the_readme_says() -> None:
    for topic, words in ((HALTS, r"HALT events, for (\d+) days"), (REJECTS, r"for (\d+) days\)")):
        days = int(re.findall(words, README.replace("\n", " "))[-1])
        assert SETTINGS[topic]["retention.ms"] == str(days * DAY_MS)
    assert SETTINGS[NORMS]["retention.ms"] == "-1"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", text):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_targets_that_are_named_can_be_made(path) -> None:
    there = set(re.findall(r"^([a-z]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= there
