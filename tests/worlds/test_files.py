"""`turnstile answer --input FILE` and `answer_table` do the same with one user and without."""

from __future__ import annotations

import csv
import sqlite3
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pandas as pd
import pytest
import redis  # noqa: F401  random ids are drawn when it is loaded, so load it before the programs run

from streams import Turnstile
from streams.answerer.event_table import answer_table
from streams.answerer.memory_journal import MemoryJournal, MemoryTopics
from streams.answerer.published_answers import AnswerRecord, read_answers
from streams.cli.main import main
from streams.config import Config
from tests.unit.sdk import files
from tests.worlds.events import (
    DAY,
    DAYS,
    END,
    LATE,
    OTHERS,
    USUAL,
    answers,
    key_query,
    queries,
    service,
)
from tests.worlds.neighbours import Fact, Program, check_neighbours

pytestmark = pytest.mark.slow
Events = list[dict[str, Any]]


def as_csv(path: Path, events: Events, columns: Iterable[str] = ()) -> None:
    columns = columns or {name: None for event in events for name in event}
    with path.open("w", newline="", encoding="utf-8") as lines:
        out = csv.DictWriter(lines, list(columns))
        out.writeheader()
        out.writerows(events)


def as_json_lines(path: Path, events: Events) -> None:
    """Write the events of the user first."""
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in reversed(events)))


@contextmanager
def on_a_service() -> Iterator[tuple[MemoryTopics, TextIOWrapper]]:
    """Let commands answer on one service in memory; return its topics, and what they print."""
    turnstile, topics, out = service(), MemoryTopics(), TextIOWrapper(BytesIO())
    with (
        patch("streams.answerer.kafka_journal.KafkaJournal", _journal(topics)),
        patch("streams.kafka.answer_topics.ensure_answer_topics"),
        patch("streams.cli.answer_commands.client_of", lambda config: nullcontext(turnstile)),
        redirect_stdout(out),
    ):
        yield topics, out


def facts_of(topics: MemoryTopics, out: TextIOWrapper) -> Iterator[Fact]:
    """Yield what is public of the printed and the published answers."""
    out.seek(0)
    printed = [line for line in out if "{" in line]
    for records in (printed, [record for _, record in topics.answers]):
        yield from answers(msgspec.json.decode(one, type=AnswerRecord) for one in records)


def answerer_of(
    suffix: str,
    write: Callable[[Path, Events], None],
    file: Callable[..., str] = queries,
) -> Program[dict[str, Any]]:
    """Return the command for a file of this kind."""

    def answer(events: Events) -> Iterator[Fact]:
        write(Path(f"events{suffix}"), events)
        Path("queries.toml").write_text(file(end=END))
        with on_a_service() as (topics, out):
            words = ["--input", f"events{suffix}", "--json", "--accept-skipped"]
            code = main(["answer", "queries.toml", *words])
        yield Fact("exit code", code)
        yield from facts_of(topics, out)

    return answer


def daily(events: Events) -> Iterator[Fact]:
    """Answer one more file on each day; all events of the user are in that of the third day."""
    columns = {name: None for event in events for name in event}
    days: list[Events] = [[] for _ in range(DAYS)]
    for event in events:
        days[event["t"] // DAY if event in OTHERS else 2].append(event)
    Path("queries.toml").write_text(queries(end=END))
    with on_a_service() as (topics, out):
        for day, of_day in enumerate(days, 1):
            as_csv(Path(f"{day}.csv"), of_day, columns)
            words = ["--input", *(f"{number}.csv" for number in range(1, day + 1))]
            words += ["--until", f"1970-01-{day + 1:02}", "--json", "--accept-skipped"]
            yield Fact("exit code", main(["answer", "queries.toml", *words]))
            yield Fact("answers so far", len(topics.answers))
    yield from facts_of(topics, out)


def of_table(table_of: Callable[[Events], Any]) -> Program[dict[str, Any]]:
    """Return a program that answers a table of this kind."""

    def answer(events: Events) -> Iterator[Fact]:
        with patch.object(sqlite3, "connect", files.connect):
            with Turnstile.open("budgets.db", partitions=2) as t:
                t.create_dataset("d", measure="gdp", epsilon=2.0, delta=1e-5, user_ids="integer")
            content = tomllib.loads(queries(end=END))
            rows = answer_table(
                content, table_of(events), budgets="budgets.db", accept_skipped=True
            )
            yield Fact("rows", [(row.query, row.step, row.label) for row in rows])
            yield from answers(read_answers(Config.load(budgets="budgets.db"), dataset="d"))

    return answer


def _journal(topics: MemoryTopics) -> Callable[..., MemoryJournal]:
    return lambda config, dataset: MemoryJournal(topics, dataset)


CSV = answerer_of(".csv", as_csv)
JSON_LINES = answerer_of(".jsonl", as_json_lines)
PANDAS, ROWS = of_table(pd.DataFrame), of_table(list)
BY_KEYS = answerer_of(".csv", as_csv, key_query)


def test_answers_of_a_file_are_complete() -> None:
    """So the comparisons below are of answers to all queries, and of corrections."""
    facts = check_neighbours(CSV, OTHERS, [])
    assert facts[0] == Fact("exit code", 0)
    shown = [fact.value for fact in facts if fact.what == "answer"]
    assert sum(one["query"] == "buyers" and one["type"] == "answer" for one in shown) == 8 * DAYS
    assert {one["type"] for one in shown} == {"answer", "correction"}
    assert len({one["query"] for one in shown}) == 6


@pytest.mark.parametrize("name", USUAL | LATE)
@pytest.mark.parametrize(
    "program", [CSV, JSON_LINES, PANDAS, ROWS], ids=["csv", "jsonl", "pandas", "rows"]
)
def test_one_user_of_a_file_decides_nothing(program: Program[Any], name: str) -> None:
    check_neighbours(program, OTHERS, (USUAL | LATE)[name])


@pytest.mark.parametrize("name", USUAL | LATE)
def test_one_user_of_daily_files_decides_nothing(name: str) -> None:
    facts = check_neighbours(daily, OTHERS, (USUAL | LATE)[name])
    assert len({fact.value for fact in facts if fact.what == "answers so far"}) == DAYS


@pytest.mark.parametrize(
    "name", ["the only one with a label", "very many events", "unknown labels", *LATE]
)
def test_one_user_of_private_keys_decides_nothing(name: str) -> None:
    check_neighbours(BY_KEYS, OTHERS, (USUAL | LATE)[name])
