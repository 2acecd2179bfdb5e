"""`turnstile answer`: private answers to the queries of a file, as windows close; `answers`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from streams.answerer.questions import Questions, read_questions
from streams.cli.logs import log_as_json
from streams.cli.output import Exit, note, plain, say, show
from streams.config import Config

if TYPE_CHECKING:
    from streams.answerer.records import PrivateAnswer


def answer(options: argparse.Namespace, config: Config) -> int:
    """Answer, or only look at the file."""
    questions = read_questions(options.file)
    if options.check:
        _check(questions, options.json)
        return Exit.OK

    def announce(answered: PrivateAnswer) -> None:
        _show(answered, options.json)

    if options.input is not None:
        return _answer_file(options.input, questions, config, options, announce)
    from streams.answerer.app import run_answerer

    if config.log_format == "json":
        log_as_json(options.log_level, sys.stderr)  # the first to say how it is logged
    return run_answerer(config, questions, announce, options.log_level)


def answers(options: argparse.Namespace, config: Config) -> int:
    """What was answered, from the first answer on."""
    from streams.answerer.reading import read_answers

    for answered in read_answers(
        config, dataset=options.dataset, run=options.run, follow=options.follow
    ):
        _show(answered, options.json)
    return Exit.OK


def _show(answered: PrivateAnswer, as_json: bool) -> None:
    if as_json:
        show(msgspec.to_builtins(answered), as_json=True)
    else:
        say(line_of(answered))


def _answer_file(
    path: Path, questions: Questions, config: Config, options: argparse.Namespace, announce: Any
) -> int:
    from streams.answerer.answering import Answering
    from streams.answerer.files import EventFile, answer_file
    from streams.answerer.kafka_journal import KafkaJournal
    from streams.sdk.client import Turnstile
    from streams.topics.answers import ensure_answer_topics

    logging.basicConfig(level=options.log_level, stream=sys.stderr)
    for chatty in ("kafka", "streams"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)  # what counts is said by this one
    file = EventFile(path, questions.for_a_file())
    ensure_answer_topics(config)
    with Turnstile(config=config) as turnstile:
        journal = KafkaJournal(config, questions.dataset, questions.run)
        try:
            answering = Answering(
                questions.for_a_file(),
                file.source,
                lambda released: turnstile.run(questions.dataset, questions.run, released=released),
                journal,
                announce,
                text=file.text,
            )
            answer_file(answering, file)
        finally:
            journal.close()
    if answering.desk.passed_over:
        note(f"events that were passed over: {answering.desk.told_of_passed_over()}")
    return Exit.OK


def line_of(answered: PrivateAnswer) -> str:
    """An answer as people read it."""
    head = f"{answered.start[:16]}  {plain(answered.query)}"
    if not isinstance(answered.value, list):
        bounds = f"{plain(answered.lower)} to {plain(answered.upper)}"
        above = "" if answered.above is None else ("  above" if answered.above else "  not above")
        return f"{head}  {plain(answered.value)}  ({bounds}){above}"
    assert isinstance(answered.lower, list)
    assert isinstance(answered.upper, list)
    rows = zip(answered.labels or [], answered.value, answered.lower, answered.upper, strict=True)
    return f"{head}  " + "  ".join(
        f"{plain(label)}={plain(value)} ({plain(lower)} to {plain(upper)})"
        for label, value, lower, upper in rows
    )


def _check(questions: Questions, as_json: bool) -> None:
    from streams.answerer.kinds import Asked

    for query in questions.queries:
        asked = Asked(query)
        noise = query.noise or f"from the budget, for {query.active_windows:g} windows"
        shown = {
            "query": query.name,
            "kind": query.kind,
            "window_seconds": query.window / 1000,
            "every_seconds": query.every / 1000,
            "numbers": asked.dimension,
            "norm_of_a_user": asked.bound,
            "noise_stddev": noise,
        }
        show(shown, as_json)
    if not as_json:
        note("the file can be asked; nothing was charged")
