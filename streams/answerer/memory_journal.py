"""The journal of answerers in memory, for plans and tests."""

from __future__ import annotations

from collections.abc import Sequence

from streams.answerer.journal import JournalEntry, key_of


class MemoryTopics:
    """Two topics in memory, which several answerers can share.

    Attributes:
        entries: in order; None where one was deleted.
        answers: with the names of their runs.
    """

    def __init__(self) -> None:
        self.entries: list[JournalEntry | None] = []
        self.answers: list[tuple[str, bytes]] = []


class MemoryJournal:
    """An implementation of ``Journal`` on ``MemoryTopics``."""

    def __init__(self, pages: MemoryTopics, dataset: str) -> None:
        self._topics, self._dataset = pages, dataset
        self._read = 0

    def append(self, entry: JournalEntry) -> None:
        """Append an entry to the shared list."""
        self._topics.entries.append(entry)

    def catch_up(self) -> Sequence[JournalEntry]:
        """Return the entries since the last call."""
        begin, self._read = self._read, len(self._topics.entries)
        found = self._topics.entries[begin:]
        return [entry for entry in found if entry and self._dataset == entry.dataset]

    def delete(self, entries: Sequence[JournalEntry]) -> None:
        """Delete entries at once."""
        gone = set(map(key_of, entries))
        pages = self._topics.entries
        pages[:] = [None if entry and key_of(entry) in gone else entry for entry in pages]

    def end(self) -> int:
        """Return the number of answers."""
        return len(self._topics.answers)

    def publish(self, answer: bytes, run: str) -> None:
        """Append an answer to the shared list."""
        self._topics.answers.append((f"{self._dataset}/{run}", answer))

    def published(self, since: int, run: str) -> Sequence[bytes]:
        """Return the answers of a run from this place on."""
        found = self._topics.answers[since:]
        return [value for name, value in found if name == f"{self._dataset}/{run}"]

    def close(self) -> None:
        """Do nothing."""
