"""The journal in a budget file: two of its tables, beside the charges.

Each entry, each answer and each charge is a transaction of its own, in the order that ``journal``
describes. Every record has a digest, so a damaged one raises ``UnusableFile``. A deletion is part
of the next write, because each transaction waits for the disk. A file that was moved into a service
rejects every write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import msgspec
from msgspec.structs import replace

from streams.answerer.journal import Journal, JournalEntry, decode_entry, key_of
from streams.sdk.budget_file import ANSWERS, ANSWERS_STATE, NO_END, BudgetFile, FileRecord


class FileJournal:
    """The entries of a dataset's runs, and their published answers.

    Args:
        path: an existing budget file.
        timeout: seconds that a call waits for other processes.
        dataset: the dataset whose entries are read.

    Raises:
        UnusableFile: the file cannot be used.
    """

    def __init__(self, path: str, timeout: float, dataset: str) -> None:
        self._file = BudgetFile(path, timeout)
        try:
            self._file.add_answer_tables()
        except BaseException:
            self._file.close()
            raise
        self._dataset = f"{dataset}/".encode()
        self._read = 0
        self._obsolete: set[bytes] = set()

    def append(self, entry: JournalEntry) -> None:
        """Write an entry; return when it is on the disk."""
        self._add(ANSWERS_STATE, key_of(entry), msgspec.msgpack.encode(entry))

    def catch_up(self) -> Sequence[JournalEntry]:
        """Return the entries of the dataset since the last call."""
        records = list(_records(self._file, ANSWERS_STATE, self._read))
        if records:
            self._read = records[-1].offset + 1
        return [
            decode_entry(record.value, self._file.path)
            for record in records
            if record.key is not None and record.key.startswith(self._dataset)
        ]

    def delete(self, entries: Sequence[JournalEntry]) -> None:
        """Delete entries together with the next write."""
        self._obsolete |= set(map(key_of, entries))

    def end(self) -> int:
        """Return the offset after the last answer."""
        return self._file.end(ANSWERS)

    def publish(self, answer: bytes, run: str) -> None:
        """Append an answer of a run; return when it is on the disk."""
        self._add(ANSWERS, self._dataset + run.encode(), answer)

    def published(self, since: int, run: str) -> Sequence[bytes]:
        """Return the answers of a run from an offset on."""
        key = self._dataset + run.encode()
        return [one.value for one in _records(self._file, ANSWERS, since) if one.key == key]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, table: str, key: bytes, value: bytes) -> None:
        self._file.add(table, key, value, obsolete=self._obsolete)
        self._obsolete = set()


def published_in(file: BudgetFile) -> Iterator[bytes]:
    """Yield the answers that were published in a budget file, which is only read.

    Raises:
        UnusableFile: the file cannot be read, or an answer is damaged.
    """
    if file.has_answers():
        for record in _records(file, ANSWERS, 0):
            yield record.value


def damaged_in(file: BudgetFile) -> Iterator[tuple[str, int]]:
    """Yield the table and the offset of each damaged record of an answerer."""
    if file.has_answers():
        for table in (ANSWERS, ANSWERS_STATE):
            for record in _records(file, table, 0, checked=False):
                if record.is_damaged:
                    yield table, record.offset


def copy_answers(file: BudgetFile, journal_of: Callable[[str], Journal]) -> int:
    """Append journal and answers of a budget file to journals of their datasets.

    Answerers then continue the runs, and no other run answers their windows again. An interrupted
    copy can be repeated: the same entry twice counts once, and so does the same answer.

    Args:
        file: which no answerer writes to any more.
        journal_of: opens the journal of a dataset.

    Returns:
        The number of answers.

    Raises:
        UnusableFile: a record is damaged.
        JournalUnavailable: repeat the copy.
    """
    if not file.has_answers():
        return 0
    entries = [decode_entry(one.value, file.path) for one in _records(file, ANSWERS_STATE, 0)]
    answers = [
        ((one.key or b"").decode().partition("/"), one.value) for one in _records(file, ANSWERS, 0)
    ]
    named = [entry.dataset for entry in entries] + [name for (name, _, _), _ in answers]
    for dataset in dict.fromkeys(named):
        with closing(journal_of(dataset)) as journal:
            for entry in entries:
                if entry.dataset == dataset:
                    journal.append(replace(entry, answers_end=0))  # an offset in the file
            for (name, _, run), value in answers:
                if name == dataset:
                    journal.publish(value, run)
    return len(answers)


def _records(
    file: BudgetFile, table: str, begin: int, *, checked: bool = True
) -> Iterator[FileRecord]:
    while records := file.read(table, begin, NO_END, checked=checked):
        yield from records
        begin = records[-1].offset + 1
