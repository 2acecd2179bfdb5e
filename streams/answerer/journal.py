"""The journal of an answerer, by which every answer is released once; and the port to its topics.

The journal is in the topic `answers-state`, or in a budget file. Only answerers may read it,
because it reveals how many events there were, and which users were left out. A run has these
entries, in the order of the log:

    begin      an attempt of the run has begun; later entries of older attempts do not count
    closing    a step closes a window; the entry has the offset reached in each input partition
    answered   the answer of a step, with its noise, as it will be published

    (nothing) --begin--> idle --closing s--> closing --answered s--> answered --closing s+1--> ...

An answerer that is paused and resumes writes after the begin of the next attempt, so its entries do
not count. The order of one partition therefore decides which answer a step has, and every reader
reaches the same result. An answerer writes each entry, reads it back, and only then acts on it:

1. Write closing before the charge. A successor then rebuilds the same window and completes the same
   charge, which counts once.
2. Charge the window, then draw the noise.
3. Write answered and read it back. If a newer attempt has begun before that entry, discard the
   answer.
4. Publish the answer. A repeated publication has the same bytes.
5. Delete the entries before this answer that are not needed any more.

A block of windows, whose answers are corrected together, is a step as well. Its content is what its
windows left out, and its answer is the correction. So the answered entries of an open block, which
have the users who were left out, remain until the correction is answered. The entry of the last
correction remains for the next one.

An answered entry contains the whole state of a run: the attempt, the digest of the file of queries,
the input, where open windows begin, the windows that the run has answered, and the answer. No entry
before it has a later attempt, or it would not count. A reader therefore reaches the same state
whichever entries that are not needed are missing, so deletion may stop at any moment. Of several
answered entries of a step, the last one counts: an entry of an older attempt may seem to count if
the begin before it was deleted, but then the newer attempt has answered the same step after it. The
last answered entry of a run is never deleted: it tells other runs which windows they would charge
again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, Literal, Protocol

import msgspec

from streams.answerer.running_totals import RunningTotal
from streams.failures import Exit, Failure
from streams.records import User

VERSION: Final = 1


class Superseded(Failure):
    """A newer attempt answers this run, so this one must stop."""

    exit_code = Exit.REFUSED


class LeftOutAmounts(msgspec.Struct, frozen=True):
    """The contributions that a window did not admit. They are data about users.

    Attributes:
        users: those who were not admitted in full.
        amounts: packed little-endian float64, (n, d): each user's bounded contribution minus the
            admitted part.
    """

    users: list[User] = []
    amounts: bytes = b""


class JournalEntry(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """An entry of the journal.

    Attributes:
        kind: one of the three kinds above.
        dataset, run: the run of the entry.
        attempt: the attempt of the run, as the service counts them.
        owner: a unique id of the answerer's attempt.
        step: the step that closes or was answered; in a begin, the next step.
        query_file: the digest of the file of queries.
        source: the topic or file of the offsets.
        positions: by partition of the input, the offset of the next event.
        begins: by partition, the offset from which all events of later windows can be read again.
        clocks: by partition, the latest time, in ms.
        windows: by the name of each query, the beginning of the first window and the end of the
            last window that the run has answered, in ms since 1970; in an answered only.
        totals: by the name of a query, its running total; in an answered only.
        block_totals: the same over its corrected blocks.
        answer: the published bytes.
        answers_end: the end of the topic `answers` before the answer was published.
        block: the query whose open block an answered window belongs to; empty without one.
        left_out: of that window.
        corrects: the query whose block was answered; empty for a window.
        v: the version of the entry.
    """

    kind: Literal["begin", "closing", "answered"]
    dataset: str
    run: str
    attempt: int
    owner: str
    step: int
    query_file: str = ""
    source: str = ""
    positions: dict[int, int] = {}
    begins: dict[int, int] = {}
    clocks: dict[int, int] = {}
    windows: dict[str, tuple[int, int]] = {}
    totals: dict[str, RunningTotal] = {}
    block_totals: dict[str, RunningTotal] = {}
    answer: bytes = b""
    answers_end: int = 0
    block: str = ""
    left_out: LeftOutAmounts = LeftOutAmounts()
    corrects: str = ""
    v: int = VERSION


class RunHistory:
    """The state of a run by its entries, read in the order of the log.

    Attributes:
        owner: the owner of the newest attempt.
        attempt: the newest attempt of the run.
        closing: the window that is being closed and has no answer yet.
        answered: the last answer.
        blocks: by the name of a query, its last correction and the answered windows since then, by
            step.
    """

    def __init__(self) -> None:
        self.owner = ""
        self.attempt = 0
        self.closing: JournalEntry | None = None
        self.answered: JournalEntry | None = None
        self.blocks: defaultdict[str, dict[int, JournalEntry]] = defaultdict(dict)
        self._since: list[JournalEntry] = []  # the last answer, and all entries after it
        self._over: list[JournalEntry] = []

    @property
    def begun(self) -> JournalEntry | None:
        """Return the last entry of a step; None before the first step."""
        return self.closing or self.answered

    @property
    def released(self) -> int:
        """Return the last step that has an answer; -1 if none has."""
        return -1 if self.answered is None else self.answered.step

    def read(self, entries: Iterable[JournalEntry]) -> None:
        """Apply entries; entries of earlier attempts are skipped."""
        for entry in entries:
            self._since.append(entry)
            # The attempt's begin may have been deleted; its last answer contains the same state.
            if entry.kind != "closing" and entry.attempt > self.attempt:
                self.attempt, self.owner = entry.attempt, entry.owner
            if entry.kind == "begin" or entry.owner != self.owner:
                continue
            if entry.kind == "closing":
                self.closing = entry
            else:
                self.answered, self.closing = entry, None
                over = [*self._since[:-1], *self._keep(entry)]
                kept = {id(one) for block in self.blocks.values() for one in block.values()}
                found = {id(one): one for one in over if id(one) not in kept}
                self._over += found.values()
                self._since = [entry]

    def _keep(self, entry: JournalEntry) -> list[JournalEntry]:
        """Keep an answered entry for its block; return the entries that it replaces."""
        block = self.blocks[entry.corrects or entry.block]
        if entry.corrects:
            replaced = list(block.values())
            block.clear()
        else:
            replaced = [block[entry.step]] if entry.step in block else []
        if entry.corrects or entry.block:
            block[entry.step] = entry
        return replaced

    def pop_obsolete(self) -> list[JournalEntry]:
        """Return the entries that are no longer needed, each once."""
        over, self._over = self._over, []
        return over


def key_of(entry: JournalEntry) -> bytes:
    """Return the unique key of an entry: an owner writes each entry once."""
    return f"{entry.dataset}/{entry.run}/{entry.owner}/{entry.kind}/{entry.step}".encode()


class JournalUnavailable(Failure):
    """Kafka does not answer, or its content is unusable. Start the answerer again."""


_DECODER = msgspec.msgpack.Decoder(JournalEntry)


def decode_entry(value: bytes, where: str) -> JournalEntry:
    """Return an entry as it was stored.

    Raises:
        JournalUnavailable: it cannot be read.
    """
    try:
        return _DECODER.decode(value)
    except msgspec.DecodeError as error:
        raise JournalUnavailable(
            f"{where} has an entry that cannot be read ({error}): it has a later version, or "
            "another program writes there. Find out before you answer again"
        ) from error


class Journal(Protocol):
    """The entries of a dataset's runs, and their published answers.

    Not shared between threads.
    """

    def append(self, entry: JournalEntry) -> None:
        """Write an entry after all others; return when it is durable.

        Raises:
            JournalUnavailable: the entry may have been written or not.
        """

    def catch_up(self) -> Sequence[JournalEntry]:
        """Return the entries of the dataset that were written since the last call, in order.

        Every entry that was durable when this was called has been returned by then.
        """

    def delete(self, entries: Sequence[JournalEntry]) -> None:
        """Delete entries that are no longer needed.

        Deletion is asynchronous: until it is complete, some readers still see the entries. An
        answerer that is killed meanwhile leaves some of them.

        Raises:
            JournalUnavailable: start again.
        """

    def end(self) -> int:
        """Return the offset of the next answer in the topic, or one before it."""

    def publish(self, answer: bytes, run: str) -> None:
        """Publish an answer of a run; return when it is durable."""

    def published(self, since: int, run: str) -> Sequence[bytes]:
        """Return the answers of a run that were published from this offset on."""

    def close(self) -> None:
        """Disconnect."""
