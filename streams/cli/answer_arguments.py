"""The arguments of `turnstile answer` and `turnstile answers`."""

from __future__ import annotations

from typing import Any

from streams.cli.options import CLIENT, Later, add_take_over, name_of, path_of, verb
from streams.config import LOG_FORMATS

answer = Later("streams.cli.answer")
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def add_answer(verbs: Any) -> None:
    """Add the commands."""
    command = verb(
        verbs,
        "answer",
        answer.answer,
        "answer the queries of a file privately, as windows of events close",
        (*CLIENT, "health"),
        "Events come from the topic that the file names, or from --input. Every window is charged "
        "user by user and released once, to the topic `answers`; start it again after a crash and "
        "it goes on. docs/answering.md says what a file can ask.",
    )
    command.add_argument("file", type=path_of, metavar="QUERIES.toml")
    where = command.add_mutually_exclusive_group()
    where.add_argument(
        "--input",
        type=path_of,
        metavar="FILE",
        help="past events: .csv, .jsonl or .parquet",
    )
    where.add_argument("--check", action="store_true", help="show the queries, and charge nothing")
    command.add_argument(
        "--charge-again",
        action="store_true",
        help="answer windows that another run has answered; their users are charged again",
    )
    add_take_over(command)
    command.add_argument("--log-format", choices=LOG_FORMATS, help="of its log (default text)")
    command.add_argument(
        "--log-level",
        type=str.upper,
        choices=_LOG_LEVELS,
        default="WARNING",
        help="(default WARNING)",
    )
    answers = verb(
        verbs,
        "answers",
        answer.answers,
        "the private answers that were published, each once",
        CLIENT,
        "With the setting answer_keys, those alone that an answerer signed: docs/security.md.",
    )
    answers.add_argument("--dataset", type=name_of)
    answers.add_argument("--run", type=name_of)
    answers.add_argument("--follow", action="store_true", help="wait for more")
