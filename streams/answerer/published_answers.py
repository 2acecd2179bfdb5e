"""Published answers and corrections: the records of the topic `answers`, and their reader.

    for record in read_answers(Config.load("reader.toml"), dataset="purchases", follow=True):
        print(record.query, record.start, record.value)

A record is JSON: an answer per window and query, and a correction per block of windows. After a
crash a record can be in the topic twice, with the same bytes; the first one of each run and step
counts. A different record of the same step was not released by an answerer. The steps of a run are
answered in order. So a step far below the newest ones was read before, and is skipped.

``deploy/asyncapi-answers.yaml`` is generated from these records: the docstring of a class is its
text, and the string below a field is the field's.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from streams.answerer.corrections import Corrected
from streams.answerer.file_journal import published_in
from streams.answerer.kinds import Answered, Floats
from streams.answerer.query_file import QueryFile
from streams.answerer.query_keys import Label
from streams.answerer.running_totals import RunningTotal
from streams.answerer.windows import Window, iso
from streams.config import Config, ConfigurationError
from streams.kafka.answer_topics import ANSWERS
from streams.kafka.authentic import ANSWERERS, WORKERS
from streams.queries.continual_monitoring import Release
from streams.sdk.budget_file import BudgetFile
from streams.sdk.decisions import UNREADABLE
from streams.sdk.errors import ConflictingDecisions
from streams.sdk.followers import Reading, Since
from streams.sdk.kafka_connection import read_signed

VERSION: Final = 1

logger = logging.getLogger("turnstile.answers")

_KEPT = 1024
"""Answers remembered per run, to notice different answers to the same steps."""

Kind: TypeAlias = Literal[
    "count",
    "distinct",
    "sum",
    "mean",
    "variance",
    "ratio",
    "histogram",
    "quantiles",
    "top",
    "threshold",
]
Moment: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""A moment in ISO 8601: in UTC, or with the offset of the time zone of the file."""


class WindowsSum(msgspec.Struct):
    """The sum of the answers of consecutive windows."""

    start: Moment
    """The first moment of the first window."""
    value: float | list[float]
    """A number, or one for each of ``labels``."""
    lower: float | list[float]
    """The lower end of the interval. All intervals of one sum hold together with the probability
    ``confidence`` of the record."""
    upper: float | list[float]
    """The upper end of that interval."""


class PrivateAnswer(msgspec.Struct, omit_defaults=True, tag_field="type", tag="answer"):
    """A private answer to a query about one window.

    ``value``, ``lower`` and ``upper`` are an estimate, and ``coverage`` names the users it is
    about. If ``provisional_until`` is a time, a correction for all users follows.
    """

    v: Literal[1]
    """The version of the record."""
    dataset: str
    """The dataset whose users were charged."""
    run: str
    """The run that charged them."""
    step: Annotated[int, Meta(ge=0)]
    """The step of the run. Each answer of a run has its own step."""
    query: str
    """The name of the query in the file."""
    kind: Kind
    """The kind of the query, as in the file."""
    start: Moment
    """The first moment of the window."""
    end: Moment
    """The first moment after the window."""
    value: float | list[float | None] | None
    """A number, or one for each of ``labels``. It is null if the noise allows no estimate."""
    lower: float | list[float | None] | None
    """The lower end of the interval around the noise. It contains the true value of the users in
    ``coverage``, each within the bounds of the query. All intervals of an answer hold together with
    the probability ``confidence``. It is null if the noise of a ratio leaves no ends."""
    upper: float | list[float | None] | None
    """The upper end of that interval."""
    coverage: Literal["admitted"]
    """The users that ``value``, ``lower`` and ``upper`` are about. admitted: only users whose
    budget paid for this window. The interval does not cover users who were left out."""
    confidence: Annotated[float, Meta(gt=0.0, lt=1.0)]
    """The probability that all intervals of this answer hold together."""
    noise_stddev: Annotated[float, Meta(gt=0.0)]
    """The standard deviation of the noise in each number of the noisy sum from which the answer was
    computed."""
    worst_case_left: Annotated[int, Meta(ge=0)]
    """The number of further such answers that a budget allows to a user who adds the maximum to
    every window of this run: the limit of accounting without individual users."""
    exhaustible_since: Moment | None
    """The start of the query's first window in which a user could have been exhausted, counting the
    charges of this run alone. From that window on, users can be missing from the answers. It is
    null if that window has not come yet. It follows from the file of queries and the policies, not
    from data about users."""
    labels: list[Label] | None = None
    """The labels of the values, if there are several. If the keys of the groups are private, these
    are the published keys, and there may be none."""
    sums: list[WindowsSum] | None = None
    """The sum of this answer and all answers before it, if the query has the key sums. Like the
    answers, it is about admitted users only."""
    above: bool | None = None
    """True if the noisy value is above the threshold. Only answers of the kind threshold have
    it."""
    provisional_until: Moment | None = None
    """The end of the block of windows to which this one belongs. When the block closes, a
    correction for all users is published. It is absent if the query is not corrected, or if the
    charges of this run cannot leave any user out of the block."""


class CorrectedWindow(msgspec.Struct):
    """The corrected answer for one window."""

    step: Annotated[int, Meta(ge=0)]
    """The step of the answer that is corrected."""
    start: Moment
    """The first moment of the window."""
    end: Moment
    """The first moment after the window."""
    raw: float | list[float]
    """The value of the answer: a number, or one for each of ``labels`` of the correction."""
    value: float | list[float]
    """The corrected value. It can be ``raw`` if ``left_out`` is smaller than its noise."""
    lower: float | list[float]
    """The lower end of the interval. ``value`` can be anywhere within the interval."""
    upper: float | list[float]
    """The upper end of that interval."""


class Correction(msgspec.Struct, omit_defaults=True, tag_field="type", tag="correction"):
    """The corrected answers for a block of windows of one query.

    A second query asked how much the block left out, because users' budgets were exhausted. The
    corrected values are computed from its noisy answer and from the answers of the windows.
    """

    v: Literal[1]
    """The version of the record."""
    dataset: str
    """The dataset whose users were charged."""
    run: str
    """The run that charged them."""
    step: Annotated[int, Meta(ge=0)]
    """The step of the run. Each answer and each correction of a run has its own step."""
    query: str
    """The name of the query in the file."""
    kind: Kind
    """The kind of the query, as in the file."""
    start: Moment
    """The first moment of the first window."""
    end: Moment
    """The first moment after the last window."""
    windows: list[CorrectedWindow]
    """The windows of the block, in their order."""
    left_out: float | list[float]
    """The noisy sum of what the windows left out: a number, or one for each of ``labels``."""
    left_out_stddev: Annotated[float, Meta(ge=0.0)]
    """The standard deviation of the noise in each number of ``left_out``. It is 0 if the file and
    the policies rule out that the charges of this run left out any user of the block."""
    shared_stddev: Annotated[float, Meta(ge=0.0)]
    """The standard deviation of the error that all windows of the block share: ``left_out_stddev``
    divided by the number of windows. Their intervals can fail together."""
    coverage: Literal["all"]
    """The users that the corrected values are about. all: all users with events in the window, each
    within the bounds of the query, whether their budget paid for it or not. Erased users can be
    missing. Other users can be missing if something else has charged the budget."""
    confidence: Annotated[float, Meta(gt=0.0, lt=1.0)]
    """The probability that all intervals of one window hold together."""
    labels: list[Label] | None = None
    """The labels of the values, if there are several."""
    sums: list[WindowsSum] | None = None
    """The sum over this block and all blocks before it, for all users, if the query has the key
    sums. Its interval does not assume how the windows of a block differ."""


AnswerRecord: TypeAlias = PrivateAnswer | Correction
"""A record of the topic."""


def answer_of(
    query_file: QueryFile,
    window: Window,
    release: Release,
    answered: Answered,
    *,
    worst_case_left: int,
    exhaustible_since: int | None,
    block_end: int | None = None,
    total: RunningTotal | None = None,
) -> PrivateAnswer:
    """Return the record of a release."""
    zone = query_file.timezone
    return PrivateAnswer(
        **_head(query_file, window, total),
        value=answered.value,
        lower=answered.lower,
        upper=answered.upper,
        coverage="admitted",
        noise_stddev=release.noise_stddev,
        worst_case_left=worst_case_left,
        exhaustible_since=None if exhaustible_since is None else iso(exhaustible_since, zone),
        labels=answered.labels,
        above=answered.above,
        provisional_until=None if block_end is None else iso(block_end, zone),
    )


def _head(query_file: QueryFile, window: Window, total: RunningTotal | None) -> dict[str, Any]:
    """Return the fields that answers and corrections share."""
    query, zone = query_file.queries[window.query], query_file.timezone
    return {
        "v": VERSION,
        "dataset": query_file.dataset,
        "run": query_file.run,
        "step": window.step,
        "query": query.name,
        "kind": query.kind,
        "start": iso(window.start, zone),
        "end": iso(window.end, zone),
        "confidence": query_file.confidence,
        "sums": None if total is None else [_sum_of(total, query_file, bool(query.labels))],
    }


def _sum_of(total: RunningTotal, query_file: QueryFile, is_list: bool) -> WindowsSum:
    numbers = total.value, *total.interval(query_file.confidence)
    start = iso(total.start, query_file.timezone)
    return WindowsSum(start, *(_shown(one, is_list) for one in numbers))


def _shown(numbers: Sequence[float] | Floats, is_list: bool) -> float | list[float]:
    """Return numbers as records have them: a number, or a list if there are labels."""
    return list(map(float, numbers)) if is_list else float(numbers[0])


def correction_of(
    query_file: QueryFile,
    window: Window,
    answers: Sequence[PrivateAnswer],
    corrected: Corrected,
    left_out: Floats,
    stddev: float,
    total: RunningTotal | None = None,
) -> Correction:
    """Return the record of a block's correction.

    Args:
        query_file: the file of queries.
        window: the block.
        answers: of its windows, in their order.
        corrected: of those windows.
        left_out: (d,), the noisy sum of what they left out.
        stddev: of its noise.
        total: over this block and those before it.
    """
    labels = answers[0].labels
    shown = partial(_shown, is_list=bool(labels))
    parts = zip(answers, raw_of(answers), *corrected, strict=True)
    return Correction(
        **_head(query_file, window, total),
        windows=[
            CorrectedWindow(answer.step, answer.start, answer.end, *map(shown, numbers))
            for answer, *numbers in parts
        ],
        left_out=shown(left_out),
        left_out_stddev=stddev,
        shared_stddev=stddev / len(answers),
        coverage="all",
        labels=labels,
    )


def raw_of(answers: Sequence[PrivateAnswer | CorrectedWindow]) -> Floats:
    """Return the uncorrected values of windows of a count or a sum, (B, d)."""
    values = [one.raw if isinstance(one, CorrectedWindow) else one.value for one in answers]
    return np.array([np.atleast_1d(np.array(value, dtype=float)) for value in values])


def read_answers(
    config: Config,
    *,
    dataset: str | None = None,
    run: str | None = None,
    since: Since = "earliest",
    follow: bool = False,
    idle_timeout: float | None = None,
    closed: threading.Event | None = None,
) -> Iterator[AnswerRecord]:
    """Yield answers and corrections, each once, in the order in which they were published.

    Args:
        config: the address of Kafka, and the keys of answerers (``answer_keys``); or a budget file.
        dataset: only records of this dataset.
        run: only records of runs with this name.
        since: where to begin.
        follow: wait for more answers after those that exist.
        idle_timeout: stop following after so many seconds without a record; None: never.
        closed: set it to stop following.

    Raises:
        ConfigurationError: the keys of workers are set, but not those of answerers; or a budget
            file was to be followed.
        ConflictingDecisions: two different answers to one step.
        ServiceUnavailable: no broker answered, or nothing was ever answered; or the budget file
            cannot be read.
    """
    if config.budgets:
        if follow or since != "earliest":
            raise ConfigurationError(
                "answers in a budget file cannot be followed: read them again, or use a service"
            )
        return distinct_answers(_in_file(config), dataset, run)
    if config.trusted_keys and not config.answer_keys:
        raise ConfigurationError(
            f"{WORKERS.trust_store} is set and {ANSWERERS.trust_store} is not, so answers could be "
            f"forged: set {ANSWERERS.trust_store} to the public keys of the answerers"
        )
    reading = Reading(since, follow, idle_timeout)
    records = read_signed(config, config.topic(ANSWERS), ANSWERERS, reading, closed)
    return distinct_answers((record.value for record in records), dataset, run)


def _in_file(config: Config) -> Iterator[bytes]:
    with closing(BudgetFile(config.budgets, config.timeout, writable=False)) as file:
        yield from published_in(file)


def distinct_answers(
    values: Iterable[bytes], dataset: str | None = None, run: str | None = None
) -> Iterator[AnswerRecord]:
    """Yield every record once; skip records that are not of this version.

    Args:
        values: of authentic records of the topic answers.
        dataset: only records of this dataset.
        run: only records of runs with this name.

    Raises:
        ConflictingDecisions: two different answers to one of the last 1,024 steps of a run.
    """
    decoder: msgspec.json.Decoder[AnswerRecord] = msgspec.json.Decoder(AnswerRecord)
    seen: defaultdict[tuple[str, str], dict[int, bytes]] = defaultdict(dict)
    for value in values:
        try:
            answer = decoder.decode(value)
        except UNREADABLE as error:
            logger.warning("skipped an unreadable record: %s", error)
            continue
        if dataset not in (None, answer.dataset) or run not in (None, answer.run):
            continue
        steps, content = seen[answer.dataset, answer.run], hashlib.sha256(value).digest()
        if answer.step not in steps:
            if len(steps) == _KEPT:
                first = next(iter(steps))
                if answer.step < first:
                    logger.warning("skipped repeated step %d of run %s", answer.step, answer.run)
                    continue
                del steps[first]
            steps[answer.step] = content
            yield answer
        elif steps[answer.step] != content:
            raise ConflictingDecisions(
                f"step {answer.step} of run {answer.run!r} of dataset {answer.dataset!r} has two "
                "different answers, so another program than its answerer writes to the topic "
                "answers. Use none of them before you have found it. With answer_keys, answers "
                "without a valid signature are skipped"
            )
