"""Who reads answers has each once, and is told when somebody else writes there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streams.answerer import answers as answers_module
from streams.answerer.answers import distinct_answers, read_answers
from streams.config import Config, ConfigurationError
from streams.kafka.authentic import ANSWERERS, Signers
from streams.records.signatures import new_keys
from streams.sdk.errors import ConflictingDecisions
from streams.sdk.followers import Followed, Reading
from tests.readme import blocks, page
from tests.unit.answerer.lives import World


@pytest.fixture(scope="module")
def published() -> list[bytes]:
    """What an answerer publishes."""
    world = World()
    world.live()
    return [value for _, value in world.pages.answers]


def forged(value: bytes, /, **fields: object) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(value), **fields})


def test_an_answer_that_was_published_twice_is_read_once(published: list[bytes]) -> None:
    answers = list(distinct_answers([published[0], *published, *published[-2:]]))
    assert [answer.step for answer in answers] == list(range(len(published)))
    assert [msgspec.json.encode(answer) for answer in answers] == published


def test_two_answers_to_one_step_are_none(published: list[bytes]) -> None:
    values = [*published[:2], forged(published[1], value=1e6), published[2]]
    answers = distinct_answers(values)
    assert [next(answers).step, next(answers).step] == [0, 1]
    with pytest.raises(ConflictingDecisions, match="two different answers"):
        next(answers)


def test_what_is_remembered_of_a_run_is_bounded_and_no_step_is_read_again(
    published: list[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streams.answerer.answers._KEPT", 2)
    late = [published[0], forged(published[1], value=1e6)]
    with caplog.at_level(logging.WARNING, "turnstile.answers"):
        answers = list(distinct_answers([*published, *late, *published[-2:]]))
    assert [answer.step for answer in answers] == list(range(len(published)))
    assert len(caplog.records) == len(late)


def test_steps_are_those_of_one_run_of_one_dataset(published: list[bytes]) -> None:
    values = [
        published[0],
        forged(published[0], run="s", value=1.0),
        forged(published[0], dataset="e", value=2.0),
    ]
    assert [(a.dataset, a.run) for a in distinct_answers(values)] == [
        ("d", "r"),
        ("d", "s"),
        ("e", "r"),
    ]
    assert [a.run for a in distinct_answers(values, "d", "s")] == ["s"]
    assert [a.dataset for a in distinct_answers(values, "e")] == ["e"]


def test_what_is_no_answer_ends_nothing(
    published: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    odd = [
        b"",
        b"{}",
        b"\xff",
        b"[" * 5000,
        forged(published[0], v=2),
        forged(published[0], lower=""),
    ]
    with caplog.at_level(logging.WARNING, "turnstile.answers"):
        assert [a.step for a in distinct_answers([*odd, published[0]])] == [0]
    assert len(caplog.records) == len(odd)


def test_whoever_knows_the_workers_has_to_know_the_answerers() -> None:
    with pytest.raises(ConfigurationError, match="answer_keys"):
        read_answers(Config(trusted_keys=new_keys()[1]))


def test_the_reader_of_the_page_reads_what_answerers_signed(
    published: list[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[Any] = []

    def read(config: Config, name: str, signers: Signers, how: Reading) -> Iterator[Followed]:
        asked.append((config.answer_keys, name, signers, how.follow))
        return (Followed(0, forged(value, dataset="purchases"), 0.0) for value in published)

    monkeypatch.setattr(answers_module, "read_signed", read)
    (tmp_path / "reader.toml").write_text('trusted_keys = "a"\nanswer_keys = "b"\n')
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(page("answering"))
    exec(example, {})
    assert asked == [("b", "turnstile.answers", ANSWERERS, True)]
    assert len(capsys.readouterr().out.splitlines()) == len(published)
