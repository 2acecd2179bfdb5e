"""Marks: the log that an answerer keeps, so that every answer is released once.

Marks are in the topic `answers-state`. Only answerers read it, because it says how many events
there were. A run has these marks, in the order of the log:

    begin      an attempt of the run has begun; later marks of older attempts do not count
    closing    a step closes a window; the mark says how far each partition of the input was read
    answered   the answer of a step, with its noise, as it will be published

    (nothing) --begin--> idle --closing s--> closing --answered s--> answered --closing s+1--> ...

An answerer that is paused and resumes writes after the begin of the next attempt, so its marks do
not count. The order of one partition therefore decides which answer a step has, and every reader
comes to the same result. An answerer writes each mark, reads it back, and only then acts on it:

1. It writes closing before the charge. A successor then rebuilds the same window and completes the
   same charge, which counts once.
2. The charge is decided; the answerer draws the noise.
3. It writes answered and reads it back. If a newer attempt has begun before that mark, it discards
   the answer.
4. It publishes the answer. A repeated publication has the same bytes.
5. It forgets the marks before this answer.

An answered mark contains the whole state of a run: the attempt, the digest of the questions, the
input, where open windows begin, the windows that the run has answered, and the answer. No mark
before it has a later attempt, or it would not count. A reader therefore comes to the same state
whichever earlier marks are missing, so forgetting may stop at any moment. The last answered mark of
a run is never forgotten: other runs see by it which windows they would charge again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

VERSION: Final = 1


class Superseded(Exception):
    """A newer attempt answers this run. This one must stop."""


class Mark(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One mark.

    Attributes:
        kind: see above.
        dataset, run: whose mark it is.
        attempt: of the run, as the service counts them.
        owner: whose attempt it is; no two have the same.
        step: that closes or was answered; the next one of a begin.
        questions: digest of the file; of a begin and of an answer.
        source: which topic or file the offsets are of; the same.
        positions: by partition of the input, the offset of the next event.
        begins: from where on all can be read again that counts in windows to come.
        clocks: by partition, the latest time, in ms.
        windows: by the name of each query, the begin of the first window and the end of the last
            window that the run has answered, in ms since 1970; of an answer.
        answer: as it is published.
        behind: the end of the topic `answers` before the answer was published.
        v: version.
    """

    kind: Literal["begin", "closing", "answered"]
    dataset: str
    run: str
    attempt: int
    owner: str
    step: int
    questions: str = ""
    source: str = ""
    positions: dict[int, int] = {}
    begins: dict[int, int] = {}
    clocks: dict[int, int] = {}
    windows: dict[str, tuple[int, int]] = {}
    answer: bytes = b""
    behind: int = 0
    v: int = VERSION


class History:
    """What the marks of a run say, read in the order of the log.

    Attributes:
        owner: who answers.
        attempt: of the run.
        begun: the first mark that counts; None if there is none.
        closing: the window that is being closed and has no answer yet.
        answered: the last answer.
    """

    def __init__(self) -> None:
        self.owner = ""
        self.attempt = 0
        self.begun: Mark | None = None
        self.closing: Mark | None = None
        self.answered: Mark | None = None
        self._since: list[Mark] = []  # the last answer, and all that was read behind it
        self._over: list[Mark] = []

    @property
    def released(self) -> int:
        """The last step that has an answer; -1 if none has."""
        return -1 if self.answered is None else self.answered.step

    def read(self, marks: Iterable[Mark]) -> None:
        """Take in marks; those of attempts that are over are passed over."""
        for mark in marks:
            self._since.append(mark)
            # The begin of an attempt may have been forgotten, and its last answer says as much.
            if mark.kind != "closing" and mark.attempt > self.attempt:
                self.attempt, self.owner = mark.attempt, mark.owner
                self.begun = self.begun or mark
            if mark.kind == "begin" or mark.owner != self.owner:
                continue
            if mark.kind == "closing":
                self.closing = mark
            else:
                self.answered, self.closing = mark, None
                self._over += self._since[:-1]
                self._since = [mark]

    def take_over(self) -> list[Mark]:
        """The marks from which nothing follows any more, each once."""
        over, self._over = self._over, []
        return over
