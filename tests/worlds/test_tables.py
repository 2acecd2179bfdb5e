"""`answer_table` does the same with one user and without."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import pytest

from streams import Turnstile
from streams.answerer.event_table import answer_table
from streams.answerer.published_answers import read_answers
from streams.config import Config
from tests.unit.sdk import files
from tests.worlds.events import DAYS, END, LATE, OTHERS, USUAL, answers, queries
from tests.worlds.neighbours import Fact, Program, check_neighbours

pytestmark = pytest.mark.slow
Events = list[dict[str, Any]]


def program_of(table_of: Callable[[Events], Any]) -> Program[dict[str, Any]]:
    """Return a program that answers a table of this kind."""

    def answer(events: Events) -> Iterator[Fact]:
        Path("queries.toml").write_text(queries(end=END))
        with patch.object(sqlite3, "connect", files.connect):
            with Turnstile.open("budgets.db", partitions=2) as t:
                t.create_dataset("d", measure="gdp", epsilon=2.0, delta=1e-5, user_ids="integer")
            rows = answer_table(
                "queries.toml", table_of(events), budgets="budgets.db", accept_skipped=True
            )
            yield Fact("rows", [(row.query, row.step, row.label) for row in rows])
            yield from answers(read_answers(Config.load(budgets="budgets.db"), dataset="d"))

    return answer


PANDAS, ROWS = program_of(pd.DataFrame), program_of(list)


@pytest.mark.parametrize("name", USUAL | LATE)
@pytest.mark.parametrize("program", [PANDAS, ROWS], ids=["pandas", "rows"])
def test_one_user_of_a_table_decides_nothing(program: Program[Any], name: str) -> None:
    facts = check_neighbours(program, OTHERS, (USUAL | LATE)[name])
    assert sum(fact.what == "answer" for fact in facts) > 4 * DAYS
