"""Published answers: valid records, each read once, and only from answerers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from streams.answerer import published_answers as answers_module
from streams.answerer.answer_table import AnswerTable
from streams.answerer.published_answers import distinct_answers, read_answers
from streams.config import Config, ConfigurationError
from streams.kafka.authentic import ANSWERERS, Signers
from streams.records.signatures import new_keys
from streams.sdk.errors import ConflictingDecisions
from streams.sdk.followers import Followed, Reading
from tests.readme import TOP, blocks, page
from tests.unit.answerer.asking import FILE, asked_of, event
from tests.unit.answerer.lives import World
from tests.unit.answerer.test_kinds import KINDS as QUERIES

DOCUMENT = yaml.safe_load((TOP / "deploy" / "asyncapi-answers.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_answers_of_every_kind_fit_the_schema_and_the_table(query: str) -> None:
    rest = 'name = "q"\nwindow = "10ms"\nnoise = 1.0'
    world = World(asked_of(f"{FILE}\n[[query]]\n{query}\n{rest}\n"))
    world.events = [event(1, time, x=2.5, c="a") for time in range(0, 30, 3)]
    world.live()
    assert len(world.topics.answers) == 2
    schema = jsonschema.Draft202012Validator(DOCUMENT["components"]["schemas"]["Answer"])
    values = [value for _, value in world.topics.answers]
    for value in values:
        schema.validate(msgspec.json.decode(value))
    expected: list[tuple[Any, Any]] = []
    for one in (msgspec.json.decode(value) for value in values):
        numbers = one["value"] if isinstance(one["value"], list) else [one["value"]]
        labels = one.get("labels")
        expected += zip([None] if labels is None else labels, numbers, strict=True)
    table = AnswerTable()
    for answer in distinct_answers(values):
        table.add(answer)
    assert [(row.label, row.value) for row in table.rows()] == expected
    assert all(row.raw_value == row.value and not row.corrected for row in table.rows())


@pytest.fixture(scope="module")
def published() -> list[bytes]:
    """Return the answers that an answerer publishes."""
    world = World()
    world.live()
    return [value for _, value in world.topics.answers]


def forged(value: bytes, /, **fields: object) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(value), **fields})


def test_repeated_answer_is_read_once(published: list[bytes]) -> None:
    answers = list(distinct_answers([published[0], *published, *published[-2:]]))
    assert [answer.step for answer in answers] == list(range(len(published)))
    assert [msgspec.json.encode(answer) for answer in answers] == published


def test_two_answers_to_one_step_end_the_reader(published: list[bytes]) -> None:
    values = [*published[:2], forged(published[1], value=1e6), published[2]]
    answers = distinct_answers(values)
    assert [next(answers).step, next(answers).step] == [0, 1]
    with pytest.raises(ConflictingDecisions):
        next(answers)


def test_reader_remembers_a_bounded_number_of_steps(
    published: list[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streams.answerer.published_answers._KEPT", 2)
    late = [published[0], forged(published[1], value=1e6)]
    with caplog.at_level(logging.WARNING, "turnstile.answers"):
        answers = list(distinct_answers([*published, *late, *published[-2:]]))
    assert [answer.step for answer in answers] == list(range(len(published)))
    assert len(caplog.records) == len(late)


def test_reader_selects_dataset_and_run(published: list[bytes]) -> None:
    changes: list[dict[str, Any]] = [{}, {"run": "s", "value": 1.0}, {"dataset": "e", "value": 2.0}]
    values = [forged(published[0], **one) for one in changes]
    names = [("d", "r"), ("d", "s"), ("e", "r")]
    assert [(a.dataset, a.run) for a in distinct_answers(values)] == names
    assert [a.run for a in distinct_answers(values, "d", "s")] == ["s"]
    assert [a.dataset for a in distinct_answers(values, "e")] == ["e"]


def test_invalid_records_are_skipped(
    published: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    odd = [b"", b"{}", b"\xff", b"[" * 5000]
    odd += [forged(published[0], v=2), forged(published[0], lower="")]
    with caplog.at_level(logging.WARNING, "turnstile.answers"):
        assert [a.step for a in distinct_answers([*odd, published[0]])] == [0]
    assert len(caplog.records) == len(odd)


def test_reader_with_worker_keys_needs_answer_keys() -> None:
    with pytest.raises(ConfigurationError):
        read_answers(Config(trusted_keys=new_keys()[1]))


def test_example_in_the_docs_reads_signed_answers(
    published: list[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[Any] = []

    def read(
        config: Config, name: str, signers: Signers, how: Reading, _: object
    ) -> Iterator[Followed]:
        asked.append((config.answer_keys, name, signers, how.follow))
        return (Followed(0, forged(value, dataset="purchases"), 0.0) for value in published)

    monkeypatch.setattr(answers_module, "read_signed", read)
    (tmp_path / "reader.toml").write_text('trusted_keys = "a"\nanswer_keys = "b"\n')
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(page("query/run"))
    exec(example, {})
    assert asked == [("b", "turnstile.answers", ANSWERERS, True)]
    assert len(capsys.readouterr().out.splitlines()) == len(published)
