"""Marks: what an answerer writes down, in one log, so that every answer is released once.

A mark is kept in the topic `answers-state`, which nobody but the answerer reads: it tells how many
events there were. The marks of a run, in the order of the log:

    begin      an attempt of the run has begun. From here on marks of older ones count for nothing
    closing    a step closes a window: where each partition of the input has come to
    answered   the answer of a step, with its noise, as it will be published

    (nothing) --begin--> idle --closing s--> closing --answered s--> answered --closing s+1--> ...

Who is paused and comes back writes behind the begin of the next attempt, and is passed over. So it
is the order of one partition that says which answer of a step there is, and everybody who reads it
says the same. Marks are written, read back, and only then acted upon:

1. closing is written before the charge, so that whoever takes over builds the same window, and
   completes the same charge, which counts once.
2. The charge is decided; noise is drawn.
3. answered is written and read back. If a newer attempt has begun before it, this answer is none.
4. It is published. Publishing again publishes the same bytes.
5. What was marked before this answer is forgotten.

An answered mark that counts says all that the run has come to: whose attempt it is, which
questions and which input, where windows to come begin, and the answer. Of the marks before it none
has a later attempt, or it would not count. So whichever of them are missing, who reads comes to the
same there, and from there on; and this mark stays until a later answer counts. Forgetting can be
left undone, or half-done, at any moment.
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
