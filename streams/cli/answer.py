"""`turnstile answer`: private answers to the queries of a file; `turnstile answers` reads them."""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from streams.answerer.questions import Questions, read_questions
from streams.cli.logs import log_as_json
from streams.cli.output import Exit, note, plain, say, show
from streams.cli.presence import is_known_absent, no_dataset, nothing_of, warn_of_absent
from streams.config import Config

if TYPE_CHECKING:
    from streams.answerer.records import PrivateAnswer

_CHECK_SECONDS = 2.0


def answer(options: argparse.Namespace, config: Config) -> int:
    """Answer the queries of a file, or only check it."""
    questions = read_questions(options.file)
    if options.check:
        return _check(questions, config, options.json)
    announce = Printer(options.json)
    if options.input is not None:
        return _answer_file(options.input, questions, config, options, announce)
    from streams.answerer.app import run_answerer

    if config.log_format == "json":
        log_as_json(options.log_level, sys.stderr)  # before anything else sets up the log
    return run_answerer(
        config,
        questions,
        announce,
        options.log_level,
        charge_again=options.charge_again,
        take_over=options.take_over,
    )


def answers(options: argparse.Namespace, config: Config) -> int:
    """Show the published answers, from the first one on."""
    from streams.answerer.reading import read_answers

    if options.follow:
        warn_of_absent(options.dataset, config)
    printed = Printer(options.json)
    for answered in read_answers(
        config, dataset=options.dataset, run=options.run, follow=options.follow
    ):
        printed(answered)
    what = "answers" if options.run is None else f"answers of run {options.run!r}"
    return Exit.OK if printed.count else nothing_of(options.dataset, what, config)


class Printer:
    """Prints answers, and explains once to people what `admitted only` means.

    Attributes:
        count: how many it has printed.
    """

    def __init__(self, as_json: bool) -> None:
        self.count = 0
        self._as_json = as_json
        self._has_explained = as_json

    def __call__(self, answered: PrivateAnswer) -> None:
        """Print an answer."""
        self.count += 1
        if self._as_json:
            show(msgspec.to_builtins(answered), as_json=True)
            return
        if answered.exhaustible_since is not None and not self._has_explained:
            self._has_explained = True
            note(
                "turnstile: `admitted only since T`: from T on, users can have exhausted their "
                "budgets. They are missing from the value, and the interval does not cover them: "
                "docs/answering.md"
            )
        say(line_of(answered))


def line_of(answered: PrivateAnswer) -> str:
    """Return an answer as one line for people."""
    parts = [_moment(answered.start, answered.end), plain(answered.query)]
    if isinstance(answered.value, list):
        assert isinstance(answered.lower, list)
        assert isinstance(answered.upper, list)
        rows = zip(
            answered.labels or [], answered.value, answered.lower, answered.upper, strict=True
        )
        parts += [
            f"{plain(label)}={plain(value)} ({plain(lower)} to {plain(upper)})"
            for label, value, lower, upper in rows
        ]
    else:
        parts += [plain(answered.value), f"({plain(answered.lower)} to {plain(answered.upper)})"]
    if answered.above is not None:
        parts.append("above" if answered.above else "not above")
    if answered.exhaustible_since is not None:
        parts.append(f"{answered.coverage} only since {_moment(answered.exhaustible_since)}")
    return "  ".join(parts)


def _moment(moment: str, *others: str) -> str:
    """Return a moment of a record without its zone; without seconds if no moment needs them."""
    if all(text.endswith(":00Z") for text in (moment, *others)):
        return moment.removesuffix(":00Z")
    return moment.removesuffix("Z")


def _answer_file(
    path: Path,
    questions: Questions,
    config: Config,
    options: argparse.Namespace,
    announce: Printer,
) -> int:
    from streams.answerer.answering import Answering
    from streams.answerer.app import opener
    from streams.answerer.files import EventFile, answer_file
    from streams.answerer.kafka_journal import KafkaJournal
    from streams.answerer.windows import iso
    from streams.kafka.answers import ensure_answer_topics
    from streams.sdk.client import Turnstile

    logging.basicConfig(level=options.log_level, stream=sys.stderr)
    for other in ("kafka", "streams"):
        logging.getLogger(other).setLevel(logging.CRITICAL)  # this command reports their errors
    file = EventFile(path, questions.for_a_file())
    ensure_answer_topics(config)
    with Turnstile(config=config) as turnstile:
        journal = KafkaJournal(config, questions.dataset, questions.run)
        try:
            answering = Answering(
                questions.for_a_file(),
                file.source,
                opener(turnstile, questions, take_over=options.take_over),
                journal,
                announce,
                text=file.text,
                charge_again=options.charge_again,
            )
            answer_file(answering, file)
        finally:
            journal.close()
    calendar = answering.desk.calendar
    if not announce.count and calendar.step:
        note(
            f"turnstile: run {questions.run!r} has answered all {calendar.step:,} windows that end "
            f"in {path}; see them by `turnstile answers --dataset {questions.dataset} "
            f"--run {questions.run}`"
        )
    elif not announce.count:
        note(
            f"turnstile: no window ends in {path}: the first one would close at "
            f"{iso(calendar.next.closes)}"
        )
    if answering.desk.passed_over:
        note(f"events that were passed over: {answering.desk.told_of_passed_over()}")
    return Exit.OK


def _check(questions: Questions, config: Config, as_json: bool) -> int:
    from streams.answerer.kinds import AskedQuery

    for query in questions.queries:
        asked = AskedQuery(query)
        shown = {
            "query": query.name,
            "kind": query.kind,
            "window_seconds": query.window / 1000,
            "every_seconds": query.every / 1000,
            "numbers": asked.dimension,
            "norm_of_a_user": asked.bound,
            "noise_stddev": query.noise or None,
            "active_windows": query.active_windows or None,
        }
        show(shown, as_json)
    # A file can be checked without a service, so this waits for one only for a moment.
    hasty = replace(config, timeout=min(config.timeout, _CHECK_SECONDS))
    if is_known_absent(questions.dataset, hasty):
        return no_dataset(questions.dataset)
    if not as_json:
        note("the file can be asked; nothing was charged")
    return Exit.OK
