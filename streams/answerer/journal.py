"""The port to the topics of marks and answers, and an implementation in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from streams.answerer.marks import Mark


def name_of(mark: Mark) -> str:
    """The name of a mark, which no other one has: an owner writes each once."""
    return f"{mark.dataset}/{mark.run}/{mark.owner}/{mark.kind}/{mark.step}"


class JournalUnavailable(Exception):
    """Kafka does not answer, or what it has cannot be used. Start again."""


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
        """Have marks go of which nothing depends on whether they are there.

        They are gone in the end, and until then for some readers and not for others. It does not
        wait for that; what is killed meanwhile leaves some of them.

        Raises:
            JournalUnavailable: start again.
        """

    def end(self) -> int:
        """Where the next answer will be in the topic, or before it."""

    def publish(self, answer: bytes) -> None:
        """Publish an answer; returns when it is durable."""

    def published(self, behind: int) -> Sequence[bytes]:
        """The answers of the run that were published, from this place on."""

    def close(self) -> None:
        """Disconnect."""


class Pages:
    """Two topics in memory, which several answerers can share.

    Attributes:
        marks: in their order; None where one was forgotten.
        answers: with the names of their runs.
    """

    def __init__(self) -> None:
        self.marks: list[Mark | None] = []
        self.answers: list[tuple[str, bytes]] = []


class MemoryJournal:
    """A journal on ``Pages``."""

    def __init__(self, pages: Pages, dataset: str, run: str) -> None:
        self._pages, self._dataset, self._name = pages, dataset, f"{dataset}/{run}"
        self._read = 0

    def append(self, mark: Mark) -> None:
        """Write a mark."""
        self._pages.marks.append(mark)

    def catch_up(self) -> Sequence[Mark]:
        """Return the marks since the last call."""
        begin, self._read = self._read, len(self._pages.marks)
        found = self._pages.marks[begin:]
        return [mark for mark in found if mark and mark.dataset == self._dataset]

    def forget(self, marks: Sequence[Mark]) -> None:
        """Have marks go, at once."""
        gone = {name_of(mark) for mark in marks}
        pages = self._pages.marks
        pages[:] = [None if mark and name_of(mark) in gone else mark for mark in pages]

    def end(self) -> int:
        """How many answers there are."""
        return len(self._pages.answers)

    def publish(self, answer: bytes) -> None:
        """Publish an answer."""
        self._pages.answers.append((self._name, answer))

    def published(self, behind: int) -> Sequence[bytes]:
        """The answers from there on."""
        return [value for name, value in self._pages.answers[behind:] if name == self._name]

    def close(self) -> None:
        """Nothing is open."""
