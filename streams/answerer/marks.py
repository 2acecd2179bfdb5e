"""Marks: the journal of an answerer, by which every answer is released once.

Marks are in the topic `answers-state`. Only answerers read it, because it reveals how many events
there were. A run has these marks, in the order of the log:

    begin      an attempt of the run has begun; later marks of older attempts do not count
    closing    a step closes a window; the mark has the offset reached in each input partition
    answered   the answer of a step, with its noise, as it will be published

    (nothing) --begin--> idle --closing s--> closing --answered s--> answered --closing s+1--> ...

An answerer that is paused and resumes writes after the begin of the next attempt, so its marks do
not count. The order of one partition therefore decides which answer a step has, and every reader
reaches the same result. An answerer writes each mark, reads it back, and only then acts on it:

1. Write closing before the charge. A successor then rebuilds the same window and completes the same
   charge, which counts once.
2. Charge the window, then draw the noise.
3. Write answered and read it back. If a newer attempt has begun before that mark, discard the
   answer.
4. Publish the answer. A repeated publication has the same bytes.
5. Delete the marks before this answer.

An answered mark contains the whole state of a run: the attempt, the digest of the questions, the
input, where open windows begin, the windows that the run has answered, and the answer. No mark
before it has a later attempt, or it would not count. A reader therefore reaches the same state
whichever earlier marks are missing, so deletion may stop at any moment. The last answered mark of a
run is never deleted: it tells other runs which windows they would charge again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

VERSION: Final = 1


class Superseded(Exception):
    """A newer attempt answers this run, so this one must stop."""


class Mark(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One mark.

    Attributes:
        kind: see above.
        dataset, run: the run of the mark.
        attempt: of the run, as the service counts them.
        owner: a unique id of the answerer's attempt.
        step: that closes or was answered; of a begin, the next step.
        questions: digest of the file; of a begin and of an answer.
        source: the topic or file of the offsets; of a begin and of an answer.
        positions: by partition of the input, the offset of the next event.
        begins: by partition, the offset from which all events of later windows can be read again.
        clocks: by partition, the latest time, in ms.
        windows: by the name of each query, the beginning of the first window and the end of the
            last window that the run has answered, in ms since 1970; of an answer.
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
    """The state of a run by its marks, read in the order of the log.

    Attributes:
        owner: the owner of the newest attempt.
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
        self._since: list[Mark] = []  # the last answer, and all marks after it
        self._over: list[Mark] = []

    @property
    def released(self) -> int:
        """Return the last step that has an answer; -1 if none has."""
        return -1 if self.answered is None else self.answered.step

    def read(self, marks: Iterable[Mark]) -> None:
        """Apply marks; those of earlier attempts are skipped."""
        for mark in marks:
            self._since.append(mark)
            # The attempt's begin may have been deleted; its last answer contains the same state.
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
        """Return the marks that are no longer needed, each once."""
        over, self._over = self._over, []
        return over
