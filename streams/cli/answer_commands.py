"""The commands that answer the queries of a file, and that show published answers."""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from accounting.exact.invalid_input import quoted
from streams.answerer.query_file import Moment, QueryFile, read_query_file
from streams.cli.commands import command
from streams.cli.options import FILE_CLIENT, FOLLOW, ONLY_RUN, TAKE_OVER, arg, flag, log_level
from streams.cli.plan_commands import check, events_of, plan
from streams.cli.printing import UnusableInput, note, plain, say, show, show_table, start_log
from streams.cli.subjects import client_of, nothing_of, warn_of_absent
from streams.cli.table_files import Kind, check_file, complete_file, write_table
from streams.config import Config
from streams.failures import Exit

if TYPE_CHECKING:
    from streams.answerer.answer_table import AnswerRow, AnswerTable
    from streams.answerer.journal import Journal
    from streams.answerer.published_answers import AnswerRecord

_COLUMNS: Final[dict[str, Kind]] = {
    "step": "integer",
    **dict.fromkeys(("dataset", "run", "query", "kind", "label"), "text"),
    **dict.fromkeys(("start", "end", "block_end", "exhaustible_since"), "time"),
    **dict.fromkeys(("corrected", "provisional", "above"), "flag"),
}
"""The kinds of the columns of files; the others have numbers."""
File: TypeAlias = Literal["csv", "parquet", "plot"]
_PLOTS: Final = (".pdf", ".png", ".svg")
_MISSING_USERS: Final = (
    "turnstile: from the time of `provisional` or `admitted only since` on, users can have "
    "exhausted their budgets, and are missing. Provisional answers are corrected for all users "
    "when their block ends: docs/query/choose.md"
)


def moment_of(text: str) -> Moment:
    """Parse a date or a time."""
    try:
        return Moment(datetime.fromisoformat(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is not a time: give one like 2026-01-31 or 2026-01-31T18:00"
        ) from None


@command(
    "answer",
    (*FILE_CLIENT, "health", "log_format"),
    arg("file QUERIES.toml", "the queries"),
    arg(
        "--input FILE",
        "past events: .csv, .jsonl or .parquet, also with .gz. Several files are read in the order "
        "of their names; files may be added later",
        nargs="+",
        action="extend",
    ),
    arg(
        "--until TIME",
        "all events of --input before this date or time are there, in the time zone of the "
        "queries: answer the windows that end by then (default: the end of the input)",
        moment_of,
    ),
    flag(
        "--check",
        "show the queries and their noise, and what of --input cannot be read or has no label; "
        "charge nothing",
        rivals="events",
    ),
    flag(
        "--accept-skipped",
        "go on without the rows of a file that cannot be read; without it, their number by "
        "reason is shown, and nothing is charged",
    ),
    flag(
        "--plan",
        "show the error of answers for several active_windows, computed from public "
        "or simulated --events; charge nothing",
        rivals="events",
    ),
    arg("--events FILE", "the events of --plan: .csv, .jsonl or .parquet"),
    arg("--query NAME", "the query of --plan (default: the first that can be planned)"),
    arg("--epsilon", "for --plan and --check, instead of the dataset's budget", float),
    arg("--delta", "the delta of --epsilon", float),
    flag("--public", "the events of --plan are public, so do not mark it as private"),
    flag(
        "--charge-again",
        "answer windows that another run has answered; their users are charged again",
    ),
    TAKE_OVER,
    log_level("WARNING"),
    lines=("answer", "correction", "query", "labels", "plan"),
)
def answer(options: argparse.Namespace, config: Config) -> int:
    """Answer the queries of a file privately, as windows of events close.

    Events come from the topic that the file names, or from --input. Every window is charged for
    each user and released once, to the topic `answers` or, with --input, to the budget file of
    --budgets. After a crash, start the command again and it continues. docs/query/file.md describes
    the file.
    """
    if options.plan:
        return plan(options, config)
    query_file = read_query_file(options.file)
    if options.check:
        return check(query_file, options, config)
    start_log(options.log_level, config.log_format)
    announce = Printer(options.json)
    if options.input is not None:
        return _answer_files(query_file, config, options, announce)
    if options.until is not None:
        raise UnusableInput("--until is about files of events: give --input FILE")
    if config.budgets:
        raise UnusableInput(
            "a budget file answers queries about files of events: give --input FILE. A topic "
            "needs a service"
        )
    from streams.answerer.answerer_app import run_answerer

    return run_answerer(
        config,
        query_file,
        announce,
        options.log_level,
        charge_again=options.charge_again,
        take_over=options.take_over,
    )


def _answer_files(
    query_file: QueryFile,
    config: Config,
    options: argparse.Namespace,
    announce: Printer,
) -> int:
    from streams.answerer.window_answering import Answering, answer_input, opener
    from streams.answerer.windows import iso

    for other in ("kafka", "streams"):
        logging.getLogger(other).setLevel(logging.CRITICAL)  # this command reports their errors
    given = events_of(options.input, query_file.for_a_file(), options)
    until = options.until.ms(query_file.timezone) if options.until else query_file.end
    with client_of(config) as turnstile:
        journal = _journal_of(config, query_file.dataset)
        try:
            answering = Answering(
                query_file.for_a_file(),
                given.source,
                opener(turnstile, query_file, take_over=options.take_over),
                journal,
                announce,
                continues=given.continues,
                charge_again=options.charge_again,
            )
            answer_input(answering, given, until)
        finally:
            journal.close()
    if not announce.count:
        of = f"{query_file.dataset}/{query_file.run}"
        by = iso(min(until, query_file.end), query_file.timezone)
        note(
            f"turnstile: run {of} has answered all windows that end by {by}; "
            f"`turnstile answers {of}` shows its answers"
        )
    return Exit.OK


def _journal_of(config: Config, dataset: str) -> Journal:
    """Return the journal of a dataset, in the budget file or the service of the settings."""
    if config.budgets:
        from streams.answerer.file_journal import FileJournal

        return FileJournal(config.budgets, config.timeout, dataset)
    from streams.answerer.kafka_journal import KafkaJournal
    from streams.kafka.answer_topics import ensure_answer_topics

    ensure_answer_topics(config)
    return KafkaJournal(config, dataset)


class Printer:
    """Prints each answer and correction as it is published."""

    def __init__(self, as_json: bool) -> None:
        self.count = 0
        self._as_json = as_json
        self._has_explained = as_json

    def __call__(self, record: AnswerRecord) -> None:
        """Print an answer, or the windows of a correction that changes them."""
        from streams.answerer.answer_table import AnswerTable

        self.count += 1
        if self._as_json:
            show("answer", record, as_json=True)
            return
        if record.coverage == "all" and not record.left_out_stddev:
            return
        table = AnswerTable()
        table.add(record)
        for total in getattr(record, "sums", None) or ():
            numbers = {name: getattr(total, name) for name in ("start", "value", "lower", "upper")}
            name = f"{record.query} in total"
            table.add(msgspec.structs.replace(record, query=name, sums=None, **numbers))
        rows = list(table.rows())
        if not self._has_explained and any(row.can_miss_users for row in rows):
            self._has_explained = True
            note(_MISSING_USERS, is_wrapped=True)
        for _, _, *line in zip(*_cells(rows).values(), strict=True):
            say("  ".join(filter(None, line)))
        if record.labels == []:
            say(f"{record.start}  {plain(record.query)}  no keys")


@command(
    "answers",
    FILE_CLIENT,
    ONLY_RUN,
    arg("--query NAME", "only this query"),
    FOLLOW,
    arg("--csv FILE", "write a row for each number of each window"),
    arg("--parquet FILE", "the same rows, with their types; needs the extra report"),
    arg("--plot FILE", "draw each query over time: .svg, .png or .pdf; needs the extra plot"),
    lines=("answer", "correction", "file"),
)
def answers(options: argparse.Namespace, config: Config) -> int:
    """Show the private answers that were published, each once, or write them to files.

    Answers are public, and so are these files. In the table and the files, corrections replace the
    answers of their windows; --json and --follow show every record. With the setting answer_keys,
    only those that an answerer signed: docs/operate/security.md.
    """
    from streams.answerer.answer_table import AnswerTable

    dataset, run = options.of
    files = _files_of(options)
    if options.follow:
        warn_of_absent(dataset, config)
    printed, table, count = Printer(options.json), AnswerTable(), 0
    for record in _records(options, config):
        count += 1
        if options.follow or (options.json and not files):
            printed(record)
        else:
            table.add(record)
    if not count:
        what = "answers" if run is None else f"answers of run {run!r}"
        what += "" if options.query is None else f" to query {options.query!r}"
        return nothing_of(dataset, what, config)
    for name, path in files.items():
        _write(name, path, table)
        rows = sum(1 for _ in table.rows())
        show("file", {"file": str(path), "rows": rows}, options.json)
    if not files and not printed.count:
        _show_rows(list(table.rows()))
    return Exit.OK


def _records(options: argparse.Namespace, config: Config) -> Iterator[AnswerRecord]:
    from streams.answerer.published_answers import read_answers

    dataset, run = options.of
    for record in read_answers(config, dataset=dataset, run=run, follow=options.follow):
        if options.query in (None, record.query):
            yield record


def _files_of(options: argparse.Namespace) -> dict[File, Path]:
    """Return the files to write, after a check that each can be written.

    Raises:
        ModuleNotFoundError: a package is not installed.
        UnusableInput: a file cannot be written.
    """
    names: tuple[File, ...] = ("csv", "parquet", "plot")
    files = {name: path for name in names if (path := getattr(options, name)) is not None}
    if files and options.follow:
        raise UnusableInput("a file is complete only without --follow: give one or the other")
    if "parquet" in files:
        import_module("pyarrow")
    if "plot" in files:
        import_module("matplotlib")
    for name, path in files.items():
        check_file(path, _PLOTS if name == "plot" else ())
    return files


def _write(file: File, path: Path, table: AnswerTable) -> None:
    """Write one file.

    Raises:
        UnusableInput: the file cannot be written.
    """
    from streams.answerer.answer_plots import save_plot  # it imports matplotlib only to draw
    from streams.answerer.answer_table import COLUMNS

    with complete_file(path) as draft:
        if file == "plot":
            save_plot(table, draft, path.suffix[1:])
        else:
            columns = {column: _COLUMNS.get(column, "number") for column in COLUMNS}
            write_table(draft, columns, map(msgspec.structs.asdict, table.rows()), file)


def _show_rows(rows: Sequence[AnswerRow]) -> None:
    """Print a table with one line for each number of each window."""
    cells = _cells(rows)
    for name in ("dataset", "run", "label"):
        if len(set(cells[name])) == 1:
            del cells[name]
    width = max(map(len, cells["value"]))
    cells["value"] = [text.rjust(width) for text in cells["value"]]
    show_table(list(cells), zip(*cells.values(), strict=True))
    if sys.stdout.isatty() and any(row.can_miss_users for row in rows):
        note(_MISSING_USERS, is_wrapped=True)


def _cells(rows: Sequence[AnswerRow]) -> dict[str, list[str]]:
    """Return the columns for people.

    Numbers have as many digits as the widest interval of their query allows.
    """
    from streams.answerer.answer_table import shown_moment

    digits: dict[str, int] = {}
    for row in rows:
        width = 0.0 if row.upper is None or row.lower is None else row.upper - row.lower
        digits[row.query] = min(digits.get(row.query, 9), _decimals(width) if width else 9)
    confidences = {row.confidence for row in rows}
    interval = f"{100 * confidences.pop():g} % interval" if len(confidences) == 1 else "interval"
    ends = [
        (_number(row.lower, digits[row.query]), _number(row.upper, digits[row.query]))
        for row in rows
    ]
    return {
        "dataset": [row.dataset for row in rows],
        "run": [row.run for row in rows],
        "window from": [shown_moment(row.start, row.end) for row in rows],
        "query": [plain(row.query) for row in rows],
        "label": ["" if row.label is None else plain(row.label) for row in rows],
        "value": [_number(row.value, digits[row.query]) for row in rows],
        interval: [" to ".join(both) for both in ends],
        "": [row.state for row in rows],
    }


def _decimals(width: float) -> int:
    """Return the decimals that show two digits of half an interval."""
    return max(0, 1 - math.floor(math.log10(width / 2))) if 0 < width < math.inf else 0


def _number(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:,.{decimals}f}"
