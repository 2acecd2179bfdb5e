"""The port to the topics of marks and answers, and an implementation in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from streams.answerer.marks import Mark


def name_of(mark: Mark) -> str:
    """Return the unique name of a mark: an owner writes each mark once."""
    return f"{mark.dataset}/{mark.run}/{mark.owner}/{mark.kind}/{mark.step}"


class JournalUnavailable(Exception):
    """Kafka does not answer, or its content is unusable. Start the answerer again."""


class Journal(Protocol):
    """The marks of a dataset's runs, and the published answers of one run.

    Not shared between threads.
    """

    def append(self, mark: Mark) -> None:
        """Write a mark after all others; return when it is durable.

        Raises:
            JournalUnavailable: the mark may have been written or not.
        """

    def catch_up(self) -> Sequence[Mark]:
        """Return the marks of the dataset that were written since the last call, in order.

        Every mark that was durable when this was called has been returned by then.
        """

    def forget(self, marks: Sequence[Mark]) -> None:
        """Delete marks that are no longer needed.

        Deletion is asynchronous: until it is complete, some readers still see the marks. An
        answerer that is killed meanwhile leaves some of them.

        Raises:
            JournalUnavailable: start again.
        """

    def end(self) -> int:
        """Return the offset of the next answer in the topic, or one before it."""

    def publish(self, answer: bytes) -> None:
        """Publish an answer; return when it is durable."""

    def published(self, behind: int) -> Sequence[bytes]:
        """Return the answers of the run that were published from this offset on."""

    def close(self) -> None:
        """Disconnect."""


class Pages:
    """Two topics in memory, which several answerers can share.

    Attributes:
        marks: in order; None where one was deleted.
        answers: with the names of their runs.
    """

    def __init__(self) -> None:
        self.marks: list[Mark | None] = []
        self.answers: list[tuple[str, bytes]] = []


class MemoryJournal:
    """An implementation of ``Journal`` on ``Pages``."""

    def __init__(self, pages: Pages, dataset: str, run: str) -> None:
        self._pages, self._dataset, self._name = pages, dataset, f"{dataset}/{run}"
        self._read = 0

    def append(self, mark: Mark) -> None:
        """Append a mark to the shared list."""
        self._pages.marks.append(mark)

    def catch_up(self) -> Sequence[Mark]:
        """Return the marks since the last call."""
        begin, self._read = self._read, len(self._pages.marks)
        found = self._pages.marks[begin:]
        return [mark for mark in found if mark and mark.dataset == self._dataset]

    def forget(self, marks: Sequence[Mark]) -> None:
        """Delete marks at once."""
        gone = {name_of(mark) for mark in marks}
        pages = self._pages.marks
        pages[:] = [None if mark and name_of(mark) in gone else mark for mark in pages]

    def end(self) -> int:
        """Return the number of answers."""
        return len(self._pages.answers)

    def publish(self, answer: bytes) -> None:
        """Append an answer to the shared list."""
        self._pages.answers.append((self._name, answer))

    def published(self, behind: int) -> Sequence[bytes]:
        """Return the answers of the run from this place on."""
        return [value for name, value in self._pages.answers[behind:] if name == self._name]

    def close(self) -> None:
        """Do nothing."""
