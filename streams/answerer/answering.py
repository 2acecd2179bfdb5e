"""Answering: every window is charged once and released once, whoever is killed when.

What an answerer knows is a function of its input and of its marks (``marks``). One life of it:

1. The run is opened, as after the last answer that has a mark. Whoever answered before can charge
   no more.
2. A begin is written and read back: of who answered before nothing more counts. If an answer came
   to be between the two, all begins again.
3. The last answer is published, if it is not in the topic.
4. The input is read again from where windows to come need it, up to where the last mark was.
5. A window that was being closed is closed.
6. From there on events come, and windows close: ``marks`` has the order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np

from streams.answerer.desk import Desk
from streams.answerer.events import Unreadable
from streams.answerer.journal import Journal
from streams.answerer.marks import History, Mark, Superseded
from streams.answerer.pricing import WorstCase, noises
from streams.answerer.questions import Questions, UnusableQueries
from streams.answerer.records import PrivateAnswer, answer_of
from streams.queries.answerer import ChargedUsers, QueryAnswerer
from streams.sdk.errors import DecisionTimeout, InvalidRequest
from streams.sdk.run import Run

logger = logging.getLogger("turnstile.answer")

Open = Callable[[int | None], Run]
"""Opens the run, as after this step; None: whatever was released."""
Announce = Callable[[PrivateAnswer], None]
_BEGINNINGS = 10


class Answering:
    """One life of an answerer. Not shared between threads.

    Args:
        questions: what is asked.
        source: which topic or file the events are of.
        open_run: opens the run.
        journal: the marks of this run.
        announce: told of every answer that was published.
        text: whether the columns of events are text.
        noise: draws the noise, for tests; None for the operating system.

    Attributes:
        desk: what is known of the input.
        last_charge: who was charged for the last window, and what was decided: sensitive. None
            before the first.
    """

    def __init__(
        self,
        questions: Questions,
        source: str,
        open_run: Open,
        journal: Journal,
        announce: Announce = lambda answer: None,
        *,
        text: bool = False,
        noise: np.random.Generator | None = None,
    ) -> None:
        self.questions = questions
        self.desk = Desk(questions, text=text)
        self._text = text
        self._source = source
        self._open_run = open_run
        self._journal = journal
        self._announce = announce
        self._noise = noise
        self.last_charge: ChargedUsers | None = None
        self._history = History()
        self._owner = uuid4().hex
        self._said: dict[Unreadable, int] = {}

    def start(self) -> None:
        """Take the run over, and know from where on the input has to be read again.

        Raises:
            UnusableQueries: the marks are of other questions or another input, or do not fit what
                was charged.
            Superseded: somebody else has begun meanwhile.
            TurnstileError: the run cannot be opened.
        """
        history = self._history
        history.read(self._journal.catch_up())
        self._check_same(history.begun)
        for _ in range(_BEGINNINGS):
            released = history.released
            # Step 1.
            run = self._open(released)
            # Step 2.
            self._mark("begin", run, released + 1)
            if history.released == released:
                break
        else:
            raise Superseded("others keep answering this run")
        self._check_same(history.begun)  # who may have begun since it was looked
        self._run = run
        self._check_charged(run)
        self._prepare(run)
        # Step 3.
        self._publish_last()
        self._journal.forget(self._history.take_over())
        # Step 4.
        at = history.closing or history.answered
        self.desk = Desk(self.questions, text=self._text, step=history.released + 1)
        if at is not None:
            self.desk.resume(at.positions, at.clocks, at.begins)

    @property
    def again(self) -> dict[int, int]:
        """By partition, up to where the input has to be read again before ``go_on``."""
        at = self._history.closing or self._history.answered
        return {} if at is None else dict(at.positions)

    def go_on(self) -> None:
        """All has been read again: close the window that was being closed, if one was.

        Raises:
            UnusableQueries: the input is not what it was.
        """
        for partition, position in self.again.items():
            # Behind the last event there can be offsets that hold nothing.
            self.desk.positions[partition] = max(position, self.desk.positions.get(partition, 0))
        # Step 5.
        if self._history.closing is not None:
            self._close(marked=True)

    def close_due(self, now: int | None) -> int:
        """Close all windows that can be closed by now; how many there were.

        Raises:
            Superseded: a newer attempt answers this run.
            TurnstileError: the window cannot be charged; nothing of it was released.
            JournalUnavailable: start again.
        """
        closed = 0
        # Step 6.
        while self.desk.is_due(now):
            self._close()
            closed += 1
        return closed

    def _close(self, marked: bool = False) -> None:
        desk, run = self.desk, self._run
        window = desk.calendar.next
        asked = desk.asked[window.query]
        if not marked:
            self._mark("closing", run, window.step)
        users, rows = desk.content_of(window)
        answerer = self._answerers[window.query]
        while True:
            try:
                release = answerer.answer(users, rows)
                break
            except DecisionTimeout as error:
                logger.warning("step %d is not decided yet: %s", window.step, error)
        if release.step != window.step:
            raise UnusableQueries(
                f"step {window.step} was charged as step {release.step}: somebody else charges run "
                f"{run.name!r}; nothing was released"
            )
        answered = asked.answered(
            np.atleast_1d(release.value), release.noise_stddev, self.questions.confidence
        )
        self.last_charge = answerer.last_charge
        desk.close(window)
        left = self._worst_case.left(desk.calendar.numbers, window.query)
        answer = answer_of(self.questions, window, release, answered, left)
        self._mark("answered", run, window.step, msgspec.json.encode(answer))
        self._journal.publish(self._last().answer)
        self._announce(answer)
        self._journal.forget(self._history.take_over())
        self._say_what_was_passed_over()

    def _mark(self, kind: Any, run: Run, step: int, answer: bytes = b"") -> None:
        """Write a mark and read it back.

        Raises:
            Superseded: somebody has begun before it.
        """
        desk, is_begin = self.desk, kind == "begin"
        mark = Mark(
            kind=kind,
            dataset=self.questions.dataset,
            run=self.questions.run,
            attempt=run.attempt,
            owner=self._owner,
            step=step,
            questions="" if kind == "closing" else self.questions.digest,
            source="" if kind == "closing" else self._source,
            positions={} if is_begin else dict(desk.positions),
            begins={} if is_begin else desk.begins(),
            clocks={} if is_begin else dict(desk.clocks),
            answer=answer,
            behind=self._journal.end() if answer else 0,
        )
        if is_begin:
            self._owner = mark.owner = uuid4().hex  # one for each attempt
        self._journal.append(mark)
        self._history.read(self._journal.catch_up())
        if self._history.owner != mark.owner:
            raise Superseded(
                f"attempt {self._history.attempt} of run {run.name!r} has begun to answer: this "
                "one stops"
            )

    def _last(self) -> Mark:
        """The last answer, as it was read back."""
        assert self._history.answered is not None
        return self._history.answered

    def _publish_last(self) -> None:
        """Publish the last answer of whoever answered before, if that did not come to it."""
        if self._history.answered is None:
            return
        last = self._last()
        if last.answer not in self._journal.published(last.behind):
            self._journal.publish(last.answer)
            self._announce(msgspec.json.decode(last.answer, type=PrivateAnswer))

    def _say_what_was_passed_over(self) -> None:
        """For the operator alone: how many there were is data about users."""
        known = dict(self.desk.passed_over)
        if known != self._said:
            self._said = known
            told = self.desk.told_of_passed_over()
            logger.warning("events that were passed over so far: %s", told)

    def _prepare(self, run: Run) -> None:
        """Noise and prices, before anything is charged.

        Raises:
            UnusableQueries: with the query.
        """
        asked = self.desk.asked
        stddevs = noises(asked, run.policy)
        self._worst_case = WorstCase(asked, stddevs, [run.policy, *run.outer])
        self._answerers = []
        for one, stddev in zip(asked, stddevs, strict=True):
            try:
                answerer = QueryAnswerer(
                    run, noise_stddev=stddev, clip_norm=one.bound, noise=self._noise
                )
            except InvalidRequest as error:
                raise UnusableQueries(f"query {one.query.name!r}: {error}") from error
            self._answerers.append(answerer)
        kinds = {"integer": True, "string": False}
        known = kinds.get(str(run.policy.user_ids))
        if known is not None and known is not self.questions.source.integers:
            raise UnusableQueries(
                f"[input]: the users of dataset {run.dataset!r} have {run.policy.user_ids} ids: "
                f'write users = "{run.policy.user_ids}"'
            )

    def _open(self, released: int) -> Run:
        try:
            return self._open_run(None if self._history.begun is None else released)
        except InvalidRequest as error:
            raise UnusableQueries(
                f"{error}. The marks in answers-state say that step {released} was answered last: "
                "if they have lost their end, or something else charges this run, go on with a run "
                "of another name; the budgets go on"
            ) from error

    def _check_same(self, begun: Mark | None) -> None:
        if begun is None:
            return
        for what, before, now in (
            ("other questions", begun.questions, self.questions.digest),
            ("another input", begun.source, self._source),
        ):
            if before != now:
                raise UnusableQueries(
                    f"run {self.questions.run!r} was begun with {what}: its windows could not be "
                    "built again. Give the file another run; the budgets of the dataset go on"
                )

    def _check_charged(self, run: Run) -> None:
        """Whether what was charged and what was answered fit."""
        history = self._history
        following = history.released + 1
        pending = history.closing is not None
        if run.step != following or (run.interrupted and not pending):
            raise UnusableQueries(
                f"run {run.name!r} has come to step {run.step}, and its marks to {following}: "
                "something else charges it, or marks are missing. Answer under a run of another "
                "name; the budgets go on"
            )
        behind = 0 if history.answered is None else history.answered.behind
        for answer in self._journal.published(behind):
            step = msgspec.json.decode(answer, type=PrivateAnswer).step
            if step > history.released:
                raise UnusableQueries(
                    f"step {step} of run {run.name!r} is published and has no mark: answers-state "
                    "has lost its end. Answer under a run of another name; the budgets go on"
                )
