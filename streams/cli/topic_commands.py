"""The commands that show the records of the topics, and the one that answers queries."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UnsetType

from streams.answerer.query_file import QueryFile, read_query_file
from streams.answerer.query_keys import Label
from streams.cli.plan_commands import check, events_of, plan
from streams.cli.printing import Exit, note, plain, say, show, start_log
from streams.cli.subjects import client_of, ids, nothing_of, user_of, warn_of_absent
from streams.config import Config, Unavailable
from streams.ledger.outputs import Channel
from streams.operations.guarantees import budget_epsilon, spent_epsilon, spent_share
from streams.operations.rejected import Refusals, by_request, readable
from streams.operations.status import (
    DatasetStatus,
    datasets_of,
    read_datasets,
    read_glances,
)
from streams.records import OdometerRecord
from streams.sdk.file_connection import FileConnection
from streams.sdk.followers import Followed, Reading, distinct_rejects
from streams.sdk.kafka_connection import read_topic

if TYPE_CHECKING:
    from streams.answerer.published_answers import AnswerRecord, Correction, PrivateAnswer

MISSING_USERS: Final = (
    "turnstile: from the time of `provisional` or `admitted only since` on, users can have "
    "exhausted their budgets, and are missing. Provisional answers are corrected for all users "
    "when their block ends: docs/query/choose.md"
)


def halts(options: argparse.Namespace, config: Config) -> int:
    """Show HALT events, from the first that Kafka still has."""
    found = False
    if options.follow:
        warn_of_absent(options.dataset, config)
    with client_of(config) as turnstile:
        for halt in turnstile.halts(
            options.dataset, run=options.run, since="earliest", follow=options.follow
        ):
            found = True
            show("halt", asdict(halt), options.json)
    what = "HALT events" if options.run is None else f"HALT events of run {options.run!r}"
    return Exit.OK if found else nothing_of(options.dataset, what, config)


def odometer(options: argparse.Namespace, config: Config) -> int:
    """Show odometer records, with what their bounds mean."""
    wanted = None if options.user is None else ids(user_of(options), config)
    found = False
    if options.follow:
        warn_of_absent(options.dataset, config)
    with client_of(config) as turnstile:
        meanings = OdometerMeanings(config, turnstile.partitions)
        for odometer in turnstile.odometer(options.dataset, follow=options.follow):
            if wanted is not None and odometer.user not in wanted:
                continue
            found = True
            show(
                "odometer",
                {
                    "dataset": odometer.dataset,
                    "user": wanted[odometer.user] if wanted else odometer.user,
                    "bound": odometer.bound,
                    **meanings.of(odometer, options.delta),
                    "delta": options.delta,
                    "partition": odometer.partition,
                    "offset": odometer.offset,
                },
                options.json,
            )
    what = "odometer records" if wanted is None else "odometer records of this user"
    return Exit.OK if found else nothing_of(options.dataset, what, config)


class OdometerMeanings:
    """Converts the bounds of odometer records into epsilons, with the policies in Redis.

    Without Redis there are no epsilons, which is printed once.
    """

    def __init__(self, config: Config, partitions: int) -> None:
        self._config = config
        self._asked: set[str] = set()
        self._without_epsilon: set[str] = set()  # datasets that were noted
        try:
            self._datasets = datasets_of(read_glances(config, partitions))
            self._is_there = True
        except Unavailable as error:
            note(f"turnstile: epsilons are missing, because the policies cannot be read: {error}")
            self._datasets, self._is_there = {}, False

    def of(self, odometer: OdometerRecord, delta: float) -> dict[str, float | None]:
        """Return what an odometer's bound means: its share of the budget, and two epsilons.

        These are the any-time epsilon of the bound and the epsilon of the whole budget. All are
        None without a policy. If norm levels may follow sampling coins, the first epsilon is None.
        """
        found = self._dataset(odometer.dataset)
        if found is None:
            return {"share": None, "epsilon": None, "budget_epsilon": None}
        policy = found.policy
        if policy.has_sampled_levels and policy.dataset not in self._without_epsilon:
            self._without_epsilon.add(policy.dataset)
            note(
                f"turnstile: only the whole budget of dataset {policy.dataset!r} has an epsilon, "
                "because norm levels may follow sampling coins (sampled_levels)"
            )
        order = None if isinstance(odometer.order, UnsetType) else odometer.order
        return {
            "share": spent_share(policy, odometer.bound, order),
            "epsilon": spent_epsilon(policy, odometer.bound, order, delta),
            "budget_epsilon": budget_epsilon(policy, order, delta),
        }

    def _dataset(self, dataset: str) -> DatasetStatus | None:
        """Return a dataset; wait once for a new one, until the partitions' owners report it."""
        if dataset not in self._datasets and dataset not in self._asked and self._is_there:
            self._asked.add(dataset)
            with suppress(Unavailable):
                self._datasets = read_datasets(self._config)
        return self._datasets.get(dataset)


def rejects(options: argparse.Namespace, config: Config) -> int:
    """Show each rejected request once, from the first that Kafka still has.

    With --follow each rejection is a line of its own: other partitions may answer later.
    """

    def read() -> Refusals:
        reading = Reading("earliest", options.follow)
        for written, rejected in distinct_rejects(_rejects(config, reading)):
            if options.dataset in (None, rejected.dataset) and options.reason in (
                None,
                rejected.reason,
            ):
                yield written, rejected

    found = False
    refused = (
        ((written, rejected, [rejected.partition]) for written, rejected in read())
        if options.follow
        else by_request(read)
    )
    for written, rejected, partitions in refused:
        found = True
        shown = readable(written, rejected)
        record, packed = shown.pop("record"), shown.pop("bytes")
        counted = {"partitions": sorted(set(partitions)), "count": len(partitions)}
        show("reject", {**shown, **counted, "record": record, "bytes": packed}, options.json)
    if options.dataset is not None and not found:  # a rejected request may name any dataset
        note(f"turnstile: no request about dataset {options.dataset!r} was rejected")
    return Exit.OK


def _rejects(config: Config, reading: Reading) -> Iterator[Followed]:
    if not config.budgets:
        yield from read_topic(config, Channel.REJECTS, reading)
        return
    with closing(FileConnection(config.budgets, config.timeout)) as file:
        yield from file.read(Channel.REJECTS, reading)


def answer(options: argparse.Namespace, config: Config) -> int:
    """Answer the queries of a file, or only check or plan it."""
    if options.plan:
        return plan(options, config)
    query_file = read_query_file(options.file)
    if options.check:
        return check(query_file, options, config)
    start_log(options.log_level, config.log_format)
    announce = Printer(options.json)
    if options.input is not None:
        return _answer_file(options.input, query_file, config, options, announce)
    from streams.answerer.answerer_app import run_answerer

    return run_answerer(
        config,
        query_file,
        announce,
        options.log_level,
        charge_again=options.charge_again,
        take_over=options.take_over,
    )


class Printer:
    """Prints answers, and explains once to people what `admitted only` means.

    Attributes:
        count: the number of printed answers.
    """

    def __init__(self, as_json: bool) -> None:
        self.count = 0
        self._as_json = as_json
        self._has_explained = as_json

    def __call__(self, answered: AnswerRecord) -> None:
        """Print an answer, or the windows of a correction that changes them."""
        self.count += 1
        if self._as_json:
            show("answer", msgspec.to_builtins(answered), as_json=True)
            return
        if answered.coverage == "all":
            if answered.left_out_stddev:
                for line in corrected_lines(answered):
                    say(line)
            return
        is_provisional = answered.provisional_until is not None
        if (is_provisional or answered.exhaustible_since) and not self._has_explained:
            self._has_explained = True
            note(MISSING_USERS)
        say(line_of(answered))


def corrected_lines(correction: Correction) -> Iterator[str]:
    """Yield a line for people for each window of a correction."""
    for window in correction.windows:
        moment = _moment(window.start, window.end)
        numbers = _numbers(window.value, window.lower, window.upper, correction.labels)
        yield "  ".join([moment, plain(correction.query), *numbers, "corrected"])


def _numbers(
    value: float | Sequence[float | None] | None,
    lower: float | Sequence[float | None] | None,
    upper: float | Sequence[float | None] | None,
    labels: list[Label] | None,
) -> list[str]:
    """Return values and intervals as text, with the label of each if there are several."""
    if not isinstance(value, Sequence):
        return [plain(value), f"({plain(lower)} to {plain(upper)})"]
    assert isinstance(lower, Sequence)
    assert isinstance(upper, Sequence)
    return [
        f"{plain(label)}={plain(value)} ({plain(lower)} to {plain(upper)})"
        for label, value, lower, upper in zip(labels or [], value, lower, upper, strict=True)
    ]


def line_of(answered: PrivateAnswer) -> str:
    """Return an answer as one line for people."""
    parts = [_moment(answered.start, answered.end), plain(answered.query)]
    parts += _numbers(answered.value, answered.lower, answered.upper, answered.labels)
    for one in answered.sums or []:
        shown = _numbers(one.value, one.lower, one.upper, answered.labels)
        parts += [f"since {_moment(one.start, answered.start)}", *shown]
    if answered.labels == []:
        parts.append("no keys")
    if answered.above is not None:
        parts.append("above" if answered.above else "not above")
    if answered.provisional_until is not None:
        parts.append(f"provisional until {_moment(answered.provisional_until)}")
    elif answered.exhaustible_since is not None:
        parts.append(f"{answered.coverage} only since {_moment(answered.exhaustible_since)}")
    return "  ".join(parts)


def _moment(moment: str, *others: str) -> str:
    """Return a moment of a record without its zone; without seconds if no moment needs them."""
    if all(text.endswith(":00Z") for text in (moment, *others)):
        return moment.removesuffix(":00Z")
    return moment.removesuffix("Z")


def _answer_file(
    path: Path,
    query_file: QueryFile,
    config: Config,
    options: argparse.Namespace,
    announce: Printer,
) -> int:
    from streams.answerer.answerer_app import opener
    from streams.answerer.kafka_journal import KafkaJournal
    from streams.answerer.window_answering import Answering, answer_file
    from streams.kafka.answer_topics import ensure_answer_topics

    for other in ("kafka", "streams"):
        logging.getLogger(other).setLevel(logging.CRITICAL)  # this command reports their errors
    file = events_of(path, query_file.for_a_file(), options)
    ensure_answer_topics(config)
    with client_of(config) as turnstile:
        journal = KafkaJournal(config, query_file.dataset)
        try:
            answering = Answering(
                query_file.for_a_file(),
                file.source,
                opener(turnstile, query_file, take_over=options.take_over),
                journal,
                announce,
                charge_again=options.charge_again,
            )
            answer_file(answering, file)
        finally:
            journal.close()
    calendar = answering.state.calendar
    if not announce.count:
        note(
            f"turnstile: run {query_file.run!r} has answered all {calendar.step:,} windows; "
            f"to see them, run `turnstile answers --dataset {query_file.dataset} "
            f"--run {query_file.run}`"
        )
    return Exit.OK
