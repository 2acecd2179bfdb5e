"""Answering: charge and release every window once, also if answerers are killed or replaced.

The state of an answerer is a function of its input and of its journal. Each start of an answerer
takes these steps:

1. Open the run after the last answer in the journal. Earlier attempts can charge no more.
2. Write a begin entry and read it back. From then on no entry of an earlier attempt counts. If
   another answerer added an answer since the entries were read, repeat steps 1 and 2.
3. Publish the last answer, if the topic does not contain it.
4. Read the input again, from the first event that an open window needs to the last entry.
5. Close the window that was being closed.
6. Read new events and close windows, in the order that ``journal`` describes.

A block is charged for what its windows left out, without the reserve that windows leave
(``corrections``).

At the end of an input of files, its clock advances to the ``end`` of the input, or to the time
before which the operator says that all events are there. Both are public. So the windows are those
that end by then, empty ones too, whatever the last event of the files is.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np

from streams.answerer.corrections import correct, ratio_of
from streams.answerer.event_input import EventInput
from streams.answerer.events import SkipReason, skipped_text
from streams.answerer.journal import Journal, JournalEntry, LeftOutAmounts, RunHistory, Superseded
from streams.answerer.kinds import Floats, order_of
from streams.answerer.pricing import costs_of
from streams.answerer.published_answers import (
    AnswerRecord,
    Correction,
    PrivateAnswer,
    answer_of,
    correction_of,
    raw_of,
)
from streams.answerer.query_file import QueryFile
from streams.answerer.query_keys import UnusableQueries
from streams.answerer.running_totals import RunningTotal
from streams.answerer.spacing import NEVER
from streams.answerer.windows import Calendar, InputState, Window, iso
from streams.queries.continual_monitoring import ChargedUsers, KeyRelease, QueryAnswerer, Release
from streams.records import User
from streams.sdk.client import Turnstile
from streams.sdk.errors import DecisionTimeout, InvalidRequest
from streams.sdk.run import Run

logger = logging.getLogger("turnstile.answer")

Open = Callable[[int], Run]
"""Opens the run after this step, the last one that was released; -1 for none."""
Announce = Callable[[AnswerRecord], None]
_BEGINNINGS = 10


class InconsistentRun(UnusableQueries):
    """The charges, the journal and the published answers of a run do not agree.

    Journal entries are missing, or another program charges the run. Answering it further could
    release a window twice.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}. Journal entries are missing, or another program charges the run. Answer "
            "under another run name, with a start after the last published answer. Users keep what "
            "they have spent"
        )


class AlreadyAnswered(UnusableQueries):
    """Another run has answered a window. Answering it again would charge its users again.

    Attributes:
        run: the run that has answered it.
        query: the name of the query.
        until: the earliest ``start`` of which no window was answered, ISO 8601.
    """

    def __init__(self, run: str, query: str, windows: tuple[int, int], until: int) -> None:
        self.run, self.query, self.until = run, query, iso(until)
        begin, end = map(iso, windows)
        super().__init__(
            f"run {run!r} has answered query {query!r} from {begin} to {end}: another answer would "
            f"charge the users of these windows again. Write start = {self.until} into the file, "
            "or pass --charge-again to charge them again"
        )


class Answering:
    """One life of an answerer. Not to be shared between threads.

    The constructor takes over the run: afterwards ``state.positions`` has the offsets from which
    the input has to be read again.

    Args:
        query_file: the file of queries.
        source: identifies the topic or file of the events.
        open_run: opens the run.
        journal: the journal and the published answers.
        announce: called with every answer and correction after its publication.
        continues: the sources that this one begins with: it can continue a run with one of them.
        charge_again: whether to answer windows that another run of the dataset has answered.
        noise: draws the noise, for tests and plans; None for the operating system.

    Attributes:
        state: the state of the input.
        last_charge: the users of the last step, and the decision about them: sensitive. None before
            the first step.

    Raises:
        UnusableQueries: the run has another file or another input, or cannot be charged.
        AlreadyAnswered: another run has answered a window that is next.
        InconsistentRun: the journal does not agree with the charges or the published answers.
        Superseded: another answerer has begun meanwhile.
        TurnstileError: the run cannot be opened.
    """

    def __init__(
        self,
        query_file: QueryFile,
        source: str,
        open_run: Open,
        journal: Journal,
        announce: Announce = lambda record: None,
        *,
        continues: Collection[str] = (),
        charge_again: bool = False,
        noise: np.random.Generator | None = None,
    ) -> None:
        self.query_file = query_file
        self._source, self._continues = source, continues
        self._open_run = open_run
        self._journal = journal
        self._announce = announce
        self.last_charge: ChargedUsers | None = None
        self._charge_again = charge_again
        self._runs: defaultdict[str, RunHistory] = defaultdict(RunHistory)
        self._history = history = self._runs[query_file.run]
        self._totals: dict[str, RunningTotal] = {}
        self._block_totals: dict[str, RunningTotal] = {}
        self._owner = uuid4().hex
        self._logged: dict[SkipReason, int] = {}
        self._catch_up()
        self._check_same()
        try:
            for window in Calendar(query_file, history.released + 1).windows():
                if window.end <= query_file.end:
                    self._check_unanswered(window)
        except AlreadyAnswered:
            self._publish_last()  # its users have been charged for it
            raise
        self._run = self._take_over()  # steps 1 and 2
        self._check_same()  # another answerer may have begun since the first check
        self.state = InputState(query_file, step=history.released + 1)
        self._costs = costs_of(query_file, [self._run.policy, *self._run.outer])
        self._prepare(noise)
        self._check_charged()
        # Step 3.
        self._publish_last()
        self._journal.delete(history.pop_obsolete())
        # Step 4.
        if history.answered is not None:
            self._totals = dict(history.answered.totals)
            self._block_totals = dict(history.answered.block_totals)
        if (at := history.begun) is not None:
            self.state.resume(at.positions, at.clocks, at.begins)

    def _take_over(self) -> Run:
        """Open the run after the last answer in the journal, and write a begin entry."""
        for _ in range(_BEGINNINGS):
            released = self._history.released
            # Step 1.
            try:
                run = self._open_run(released)
            except InvalidRequest as error:
                self._catch_up()
                if self._history.released != released:
                    continue  # another answerer has answered more since the entries were read
                raise InconsistentRun(
                    f"{error}. According to the journal, step {released} was answered last"
                ) from error
            # Step 2.
            self._owner = uuid4().hex  # one for each attempt
            self._write("begin", run, released + 1)
            if self._history.released == released:
                return run
        raise Superseded("other answerers keep answering this run: run only one")

    @property
    def replay_until(self) -> dict[int, int]:
        """Return by partition the offset up to which the input is read before `finish_closing`."""
        return {} if (at := self._history.begun) is None else dict(at.positions)

    def finish_closing(self) -> None:
        """Close the window that was being closed, after the input was read again.

        Raises:
            AlreadyAnswered: another run has answered the window.
            TurnstileError: the window cannot be charged, or it is not the same as before.
        """
        for partition, position in self.replay_until.items():
            # Offsets after the last event can be without a record.
            self.state.positions[partition] = max(position, self.state.positions.get(partition, 0))
        # Step 5.
        if self._history.closing is not None:
            self._close(is_entered=True)

    def close_due(self, now: int | None) -> int:
        """Close all windows that can be closed by now; return how many there were.

        Raises:
            Superseded: a newer attempt answers this run.
            AlreadyAnswered: another run has answered the window.
            TurnstileError: the window cannot be charged; nothing of it was released.
            JournalUnavailable: start again.
        """
        closed = 0
        # Step 6.
        while self.state.is_due(now):
            self._close()
            closed += 1
        return closed

    def _close(self, is_entered: bool = False) -> None:
        state = self.state
        window = state.calendar.next
        if not is_entered:
            self._write("closing", self._run, window.step)
        record: AnswerRecord
        block, left_out = "", LeftOutAmounts()
        if window.is_block:
            record = self._correction(window)
        else:
            record, block, left_out = self._answer(window)
        self._write(
            "answered",
            self._run,
            window.step,
            answer=msgspec.json.encode(record),
            block=block,
            left_out=left_out,
            corrects=record.query if window.is_block else "",
        )
        last = self._history.answered  # as it was read back
        assert last is not None
        self._journal.publish(last.answer, self._run.name)
        self._announce(record)
        self._journal.delete(self._history.pop_obsolete())
        self._log_skipped()

    def _answer(self, window: Window) -> tuple[PrivateAnswer, str, LeftOutAmounts]:
        """Charge a window; return its answer, and what it left out for the block that it is in."""
        self._check_unanswered(window)
        query, blocks = self.query_file.queries[window.query], self.query_file.blocks[window.query]
        answerer, calendar = self._answerers[window.query], self.state.calendar
        release = self._charge(answerer, window, *self.state.content_of(window))
        self.state.close(window)
        confidence, worst_case = self.query_file.confidence, self._costs.worst_case
        if isinstance(release, KeyRelease):
            answered = query.answered_keys(release, confidence)
        else:
            value = np.atleast_1d(release.value)
            answered = query.answered(value, release.noise_stddev, confidence)
            if query.sums:
                _add(self._totals, query.name, window, value, release.noise_stddev**2)
        since, until = worst_case.exhaustible_since(calendar, window.query, window.number), None
        is_in_block = window.number < blocks.windows
        if is_in_block and self._leaves_out(window.query, window.number // blocks.size):
            until = calendar.block_end(window.query, window.number // blocks.size)
        answer = answer_of(
            self.query_file,
            window,
            release,
            answered,
            worst_case_left=worst_case.left(calendar.numbers, window.query),
            exhaustible_since=None if since is None else calendar.window(window.query, since).start,
            block_end=until,
            total=self._totals.get(query.name),
        )
        if not is_in_block:
            return answer, "", LeftOutAmounts()
        charged = answerer.last_charge
        assert charged is not None
        places = np.flatnonzero(charged.left_out.any(axis=1))
        users: list[User] = list(charged.users.select(places))
        amounts = charged.left_out[places].astype("<f8").tobytes()
        return answer, query.name, LeftOutAmounts(users, amounts)

    def _correction(self, window: Window) -> Correction:
        """Charge a block for what its windows left out, and return their corrected answers."""
        query = self.query_file.queries[window.query]
        entries = self._open_block(window.query)
        answered = [entry for entry in entries if not entry.corrects]
        answers = [msgspec.json.decode(entry.answer, type=PrivateAnswer) for entry in answered]
        raw, noise, before = raw_of(answers), answers[0].noise_stddev, None
        if entries[0].corrects:
            last = msgspec.json.decode(entries[0].answer, type=Correction)
            left_out = np.atleast_1d(np.array(last.left_out, dtype=float))
            before = ratio_of(raw_of(last.windows), noise, left_out, last.left_out_stddev)
        leaves_out = self._leaves_out(window.query, window.number)
        # No noise is needed if it is public that no user was left out.
        users, rows = _left_out_of(answered if leaves_out else [], query.dimension)
        release = self._charge(self._correctors[window.query], window, users, rows)
        self.state.close(window)
        left_out, stddev = np.atleast_1d(release.value), release.noise_stddev
        if not leaves_out:
            left_out, stddev = np.zeros(query.dimension), 0.0
        if query.sums:
            variance = len(raw) * noise**2 + stddev**2
            _add(self._block_totals, query.name, window, raw.sum(axis=0) + left_out, variance)
        if leaves_out and query.is_never_negative:
            left_out = np.maximum(left_out, 0.0)
        corrected = correct(raw, noise, left_out, stddev, before, self.query_file.confidence)
        total = self._block_totals.get(query.name)
        return correction_of(self.query_file, window, answers, corrected, left_out, stddev, total)

    def _leaves_out(self, query: int, block: int) -> bool:
        """Return whether the charges of this run can leave a user out of a block. It is public."""
        calendar, last = self.state.calendar, self.query_file.blocks[query].last_of(block)
        return self._costs.worst_case.exhaustible_since(calendar, query, last) is not None

    def _charge(
        self,
        answerer: QueryAnswerer,
        window: Window,
        users: list[User],
        rows: Floats,
        keys: Sequence[list[int]] = (),
    ) -> Release:
        """Charge and release a step."""
        selection = None if window.is_block else self._selections[window.query]
        while True:
            try:
                if selection is None:
                    release = answerer.answer(users, rows, dimension=rows.shape[1])
                else:
                    release = answerer.answer_keys(users, rows[:, 1::2], keys, selection)
                break
            except DecisionTimeout as error:
                logger.warning("step %d is not decided yet; asking again: %s", window.step, error)
        if release.step != window.step:
            raise InconsistentRun(
                f"step {window.step} of run {self._run.name!r} was charged as step {release.step}; "
                "nothing was released"
            )
        self.last_charge = answerer.last_charge
        return release

    def _open_block(self, query: int) -> list[JournalEntry]:
        """Return the entries of a query's open block, after that of the correction before, if any.

        Raises:
            InconsistentRun: entries are missing.
        """
        name, expected = (
            self.query_file.queries[query].name,
            self.state.calendar.open_windows(query),
        )
        entries = [entry for _, entry in sorted(self._history.blocks[name].items())]
        count = sum(not entry.corrects for entry in entries)
        if count != expected:
            raise InconsistentRun(
                f"the journal has {count} of the {expected} answers of query {name!r} that are not "
                "corrected yet"
            )
        return entries

    def _write(self, kind: Any, run: Run, step: int, **content: Any) -> None:
        """Write a journal entry and read it back.

        Raises:
            Superseded: another answerer has begun before it.
        """
        entry = JournalEntry(
            kind=kind,
            dataset=self.query_file.dataset,
            run=self.query_file.run,
            attempt=run.attempt,
            owner=self._owner,
            step=step,
            query_file=self.query_file.digest,
            source=self._source,
            **content,
        )
        if kind != "begin":
            entry.positions, entry.clocks = dict(self.state.positions), dict(self.state.clocks)
            entry.begins = self.state.begins()
        if kind == "answered":
            entry.windows = self.state.calendar.closed()
            entry.totals, entry.block_totals = dict(self._totals), dict(self._block_totals)
            entry.answers_end = self._journal.end()
        self._journal.append(entry)
        self._catch_up()
        self._check_owner()

    def _catch_up(self) -> None:
        """Read the entries that were written since the last call."""
        for entry in self._journal.catch_up():
            self._runs[entry.run].read([entry])
        for history in self._runs.values():
            if history is not self._history:
                history.pop_obsolete()  # this answerer never forgets entries of other runs

    def _check_owner(self) -> None:
        """Check that no other answerer has taken over the run, as far as the journal was read.

        Raises:
            Superseded: one has.
        """
        history = self._history
        if history.owner != self._owner:
            raise Superseded(
                f"attempt {history.attempt} of run {self.query_file.run!r} has begun to answer: "
                "this answerer stops"
            )

    def _publish_last(self) -> None:
        """Publish the last answer in the journal, if the topic does not contain it."""
        if (last := self._history.answered) is None:
            return
        if last.answer not in self._journal.published(last.answers_end, last.run):
            self._journal.publish(last.answer, last.run)
            self._announce(_decoded(last.answer))

    def _log_skipped(self) -> None:
        """Log the number of skipped events, for the operator only: it is data about users."""
        known = dict(self.state.skipped)
        if known != self._logged:
            self._logged = known
            text = skipped_text(self.state.skipped, self.state.incomplete)
            logger.warning("skipped events so far: %s", text)

    def _prepare(self, noise: np.random.Generator | None) -> None:
        """Make what answers each query, before anything is charged.

        Raises:
            UnusableQueries: names the query.
        """
        run, costs = self._run, self._costs
        self._answerers: list[QueryAnswerer] = []
        self._selections = [
            query.selection(stddev)
            for query, stddev in zip(self.query_file.queries, costs.noises, strict=True)
        ]
        self._correctors: dict[int, QueryAnswerer] = {}
        pairs = zip(self.query_file.queries, self.query_file.blocks, strict=True)
        for number, (query, blocks) in enumerate(pairs):
            try:
                self._answerers.append(
                    QueryAnswerer(
                        run,
                        noise_stddev=costs.noises[number],
                        clip_norm=query.bound,
                        reserve=costs.reserve,
                        noise=noise,
                    )
                )
                if blocks.size:
                    self._correctors[number] = QueryAnswerer(
                        run,
                        noise_stddev=costs.corrections[number],
                        clip_norm=query.bound * blocks.size,
                        noise=noise,
                    )
            except InvalidRequest as error:
                raise UnusableQueries(f"query {query.name!r}: {error}") from error
        ids = str(run.policy.user_ids)
        if ids in ("integer", "string") and ids != self.query_file.source.users:
            raise UnusableQueries(
                f'[input]: the users of dataset {run.dataset!r} have {ids} ids: set users = "{ids}"'
            )

    def _check_unanswered(self, window: Window) -> None:
        """Check that no other run of the dataset has answered a window, as far as it was read.

        A query is the same in every run if it has the same name.

        Raises:
            AlreadyAnswered: one has.
        """
        if self._charge_again:
            return
        query = self.query_file.queries[window.query].name
        others = {
            run: history.answered.windows
            for run, history in self._runs.items()
            if history is not self._history and history.answered is not None
        }
        for run, answered in others.items():
            begin, end = answered.get(query, (0, 0))
            if begin <= window.start and window.end <= end:
                names = {one.name for one in self.query_file.queries}
                ends = [
                    last
                    for one in others.values()
                    for name, (_, last) in one.items()
                    if name in names
                ]
                raise AlreadyAnswered(run, query, (begin, end), max(ends))

    def _check_same(self) -> None:
        """Check that the run was begun with this file of queries and this input.

        Raises:
            UnusableQueries: it was begun with others. Nothing was charged.
        """
        if (begun := self._history.begun) is None:
            return
        if begun.query_file != self.query_file.digest:
            what = "with another file of queries"
        elif begun.source not in (self._source, *self._continues):
            what = "on another input"
        else:
            return
        raise UnusableQueries(
            f"run {self.query_file.run!r} was begun {what}, and a run has one file of queries and "
            "one input. Restore it: give all earlier files or tables again, unchanged, before new "
            "ones. Or close the run, and give this file its own run name, and a start after the "
            "last published answer. Users keep what they have spent",
            "run",
        )

    def _check_charged(self) -> None:
        """Check that the charges, the journal and the published answers agree.

        Raises:
            InconsistentRun: they do not.
            Superseded: another answerer has begun and answered since the entries were read.
        """
        history, run = self._history, self._run
        following = history.released + 1
        if run.step != following:
            raise InconsistentRun(
                f"run {run.name!r} was charged up to step {run.step - 1}, but its journal ends at "
                f"step {history.released}"
            )
        if run.interrupted and history.closing is None:
            raise InconsistentRun(
                f"step {following} of run {run.name!r} was charged and has no journal entry"
            )
        since = 0 if history.answered is None else history.answered.answers_end
        steps = [_decoded(answer).step for answer in self._journal.published(since, run.name)]
        last = max(steps, default=-1)
        if last > history.released:
            self._catch_up()
            self._check_owner()
            raise InconsistentRun(
                f"the answer to step {last} of run {run.name!r} is published, but not journaled"
            )
        for number in self._correctors:
            self._open_block(number)


def _left_out_of(entries: list[JournalEntry], dimension: int) -> tuple[list[User], Floats]:
    """Return what windows left out of each user's contributions, (n, d), summed."""
    total: dict[User, Floats] = {}
    for entry in entries:
        amounts = np.frombuffer(entry.left_out.amounts, dtype="<f8").reshape(-1, dimension)
        for user, row in zip(entry.left_out.users, amounts, strict=True):
            total[user] = total[user] + row if user in total else row
    users = sorted(total, key=order_of)
    return users, np.array([total[user] for user in users]).reshape(-1, dimension)


def _add(
    totals: dict[str, RunningTotal], query: str, window: Window, value: Floats, variance: float
) -> None:
    """Add an answer to the running total of its query."""
    before = totals.get(query) or RunningTotal(window.start, [0.0] * len(value), 0.0)
    totals[query] = before.plus(value, variance)


def _decoded(record: bytes) -> AnswerRecord:
    found: AnswerRecord = msgspec.json.decode(record, type=AnswerRecord)
    return found


def opener(turnstile: Turnstile, query_file: QueryFile, *, take_over: bool = False) -> Open:
    """Return a function that opens the run of this file of queries."""
    return lambda released: turnstile.run(
        query_file.dataset, query_file.run, released=released, take_over=take_over
    )


def answer_input(answering: Answering, given: EventInput, until: int = NEVER) -> None:
    """Answer all windows that end by a time, from the events of files or tables.

    A position in the journal is a number of events, in the order of the files. All files are read
    before a window closes, so an interrupted step has the same events again, and events of a file
    that is added later count in the windows that are still open. The public ``until`` closes
    windows, and no event does, whatever its time is.

    Args:
        answering: whose source is that of the input.
        given: the events.
        until: all events before it are there, in ms since 1970; at most the ``end`` of the input.

    Raises:
        UnusableQueries: nothing more can be answered.
        TurnstileError: as ``Answering.close_due``.
    """
    state, known = answering.state, answering.replay_until.get(0, 0)
    due = min(until, answering.query_file.end) + answering.query_file.source.lateness.ms
    for event in given.events[:known]:
        state.take_event(event, is_again=True)
    answering.finish_closing()
    state.positions[0] = len(given.events)
    for event in sorted(given.events[known:], key=lambda event: event.time):
        answering.close_due(min(event.time, due))  # so that few windows are in memory
        state.take_event(event)
    answering.close_due(due)
