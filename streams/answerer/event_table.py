"""Tables of events in memory, and their private answers in a budget file.

    from streams.answerer.event_table import answer_table

    rows = answer_table("queries.toml", frame, budgets="budgets.db")

A table is of pandas, of Polars or of Arrow (anything with ``__arrow_c_stream__``), or a sequence of
rows, each a mapping. It is answered as a file of the same events is: the rules, the journal and the
answers are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import date, datetime
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

import numpy as np

from accounting.exact.invalid_input import quoted
from streams.answerer.answer_table import AnswerRow, AnswerTable
from streams.answerer.arrow_columns import misfit, rows_of
from streams.answerer.event_input import EventInput, EventRows, Row
from streams.answerer.file_journal import FileJournal
from streams.answerer.published_answers import read_answers
from streams.answerer.query_file import Moment, QueryFile, parse_queries, read_query_file
from streams.answerer.query_keys import UnusableQueries
from streams.answerer.spacing import NEVER
from streams.answerer.window_answering import Answering, answer_input, opener
from streams.config import Config
from streams.sdk.client import Turnstile

_EXACT: Final = 2**53


def answer_table(
    queries: str | PathLike[str] | Mapping[str, Any],
    table: Any,
    *,
    budgets: str | PathLike[str],
    until: date | None = None,
    accept_skipped: bool = False,
    charge_again: bool = False,
    take_over: bool = False,
) -> list[AnswerRow]:
    """Answer queries about a table of events privately, and return all answers of the run.

    Every window is charged for each user and released once, as ``turnstile answer --input`` does
    it. Call the function again after a crash, and it continues. A repeated call charges nothing and
    returns the same answers.

    Args:
        queries: the path of a file of queries, or its content: the tables that TOML has.
        table: the events, or a list of tables, to which others may be added later, after those
            before. A table is of pandas, of Polars or of Arrow, or a sequence of rows, which are
            mappings. The order of its rows, other columns, and the package decide nothing.
        budgets: a budget file that has the dataset.
        until: all events before this date or time are in the tables. The windows that end by then
            are answered. None: those that end by the ``end`` of the queries.
        accept_skipped: go on without the rows that cannot be read. If it is false, they raise an
            error, and nothing is charged.
        charge_again: answer windows that another run has answered; their users are charged again.
        take_over: take the budget from the run that holds it.

    Returns:
        The answers of the run, as ``turnstile answers`` shows them: a row for each number of each
        window, with its corrected value if it has one.

    Raises:
        UnusableQueries: the queries or a table cannot be used. Nothing was charged.
        UnusableFile: the budget file cannot be used.
        TurnstileError: a window cannot be charged; nothing of it was released.
    """
    try:
        moment = None if until is None else Moment(until)
    except ValueError as error:
        raise UnusableQueries(f"until is {quoted(until)}: {error}") from error
    if isinstance(queries, Mapping):
        query_file = parse_queries(queries).for_a_file()
    else:
        query_file = read_query_file(Path(queries)).for_a_file()
    parts = table if isinstance(table, list | tuple) and not _is_rows(table) else [table]
    names = ["the table"] if len(parts) == 1 else [f"table {n}" for n in range(1, len(parts) + 1)]
    given = EventInput([EventTable(*one, query_file) for one in zip(parts, names, strict=True)])
    if given.needs_acceptance and not accept_skipped:
        raise UnusableQueries(
            f"{given.report()}\nNothing was charged. Correct the rows, or pass accept_skipped=True "
            "to go on without them"
        )
    config = Config.load(budgets=fspath(budgets))
    with (
        Turnstile(config=config) as turnstile,
        closing(FileJournal(config.budgets, config.timeout, query_file.dataset)) as journal,
    ):
        answering = Answering(
            query_file,
            given.source,
            opener(turnstile, query_file, take_over=take_over),
            journal,
            continues=given.continues,
            charge_again=charge_again,
        )
        answer_input(answering, given, moment.ms(query_file.timezone) if moment else NEVER)
    answers = AnswerTable()
    for record in read_answers(config, dataset=query_file.dataset, run=query_file.run):
        answers.add(record)
    return list(answers.rows())


class EventTable(EventRows):
    """The events of a table in memory, in the order of their times.

    Args:
        table: as ``answer_table`` takes it.
        name: what messages call it.
        query_file: names the columns; its input has an end.

    Raises:
        UnusableQueries: it is no table, or its columns do not fit the queries.
    """

    def __init__(self, table: Any, name: str, query_file: QueryFile) -> None:
        super().__init__(name, query_file)
        if type(table).__module__.partition(".")[0] == "pandas" and hasattr(table, "columns"):
            self._take(self._pandas(table))
        elif hasattr(table, "__arrow_c_stream__"):
            self._take(self._arrow(table))
        elif _is_rows(table):
            self._take(self._mappings(table))
        else:
            raise self._fault(
                f"a {type(table).__name__} is no table: give a data frame of pandas or Polars, an "
                "Arrow table, or a list of rows, which are mappings"
            )
        self.source = self._digest()

    def _pandas(self, frame: Any) -> Iterator[tuple[int, Row]]:
        """Yield the rows of a data frame as its values are.

        Arrow would infer one type for a whole column of objects, so that the value of one user
        could make the table unusable. And pandas stores integers as floats if one is missing.
        """
        self._check_names(list(frame.columns))
        integers = {column for column, role in self._roles if role in ("integers", "labels")}
        for number, values in enumerate(frame[self._wanted].itertuples(index=False, name=None), 1):
            row = dict(zip(self._wanted, map(_plain, values), strict=True))
            yield number, {n: _whole(v) if n in integers else v for n, v in row.items()}

    def _arrow(self, table: Any) -> Iterator[tuple[int, Row]]:
        try:
            import pyarrow as pa
        except ModuleNotFoundError as error:
            raise self._fault(
                "tables of Arrow need pyarrow: pip install 'dp-turnstile[report]'"
            ) from error
        try:
            reader = pa.RecordBatchReader.from_stream(table)
            self._check_names(reader.schema.names)
            if problem := misfit(reader.schema, self._roles):
                raise self._fault(problem)
            yield from rows_of(reader, self._wanted)
        except pa.ArrowException as error:
            raise self._fault(str(error)) from error

    def _mappings(self, rows: Iterable[Any]) -> Iterator[tuple[int, Row]]:
        for number, row in enumerate(rows, start=1):
            if isinstance(row, Mapping):
                yield number, {name: _plain(row[name]) for name in self._wanted if name in row}
            else:
                yield number, None

    def _digest(self) -> str:
        """Return what identifies the events: their users, times and contributions.

        It is the same for every package and every order of the rows, so that a table that is read
        again continues its run.
        """
        queries = self._query_file.queries
        counted = sorted(
            repr((event.user, event.time, [query.added(event.columns) for query in queries]))
            for event in self.events
        )
        return f"table:{hashlib.sha256(chr(10).join(counted).encode()).hexdigest()}"


def _is_rows(table: Any) -> bool:
    """Return whether a table is a sequence of rows; an empty one has no rows."""
    is_list = isinstance(table, list | tuple)
    return is_list and (not table or any(isinstance(row, Mapping) for row in table))


def _plain(value: Any) -> Any:
    """Return a value of NumPy as Python has it; None for a time that Python cannot hold."""
    if isinstance(value, np.datetime64):  # of nanoseconds, item() would be a number
        moment = value.astype("datetime64[ms]").item()
        return moment if isinstance(moment, datetime) else None
    return value.item() if isinstance(value, np.generic) else value


def _whole(value: Any) -> Any:
    """Return the integer that a float is, if no other integer has this float."""
    is_whole = type(value) is float and value.is_integer() and abs(value) < _EXACT
    return int(value) if is_whole else value
