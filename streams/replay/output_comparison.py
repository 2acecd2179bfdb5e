"""Compares the records of a topic with the outputs of the replayed log.

A merge of the two in the order of the log is not possible. A worker that acquires a partition may
publish outputs again, however many records lie between. A repeated request gets the old answer,
with the old offset. Compaction removes odometer records, and tombstones have no offset. So the
topic is read first, and nine bytes are kept of every record.

    output of the log   record of the topic
    yes                 yes                  fits
    no                  yes                  foreign: reported with the output that belongs there
    yes                 no                   lost, unless it may still be in the outbox, came after
                                             the state was read, or is older than the whole topic
"""

from __future__ import annotations

import hashlib
import secrets
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET

from streams.kafka import topics
from streams.ledger.outputs import Channel, Output
from streams.records import OdometerRecord, Rejected, decode_answer, encode, tombstone_offset
from streams.replay.archive import DAMAGED, Archive, ArchivedRecord
from streams.replay.findings import KEPT_FINDINGS, Check, PartitionVerified
from streams.sdk.decisions import UNREADABLE

Subject: TypeAlias = tuple[tuple[str, Any], ...]
"""The subject of a record: names and values. Two records with one subject contradict each other."""

_GENUINE, _FOREIGN = 1, 2
decode_odometer = msgspec.msgpack.Decoder(OdometerRecord).decode
_decode_reject = msgspec.msgpack.Decoder(Rejected).decode


def _without_detail(value: bytes) -> bytes:
    """Return a reject without its text for people, which may differ between releases."""
    try:
        return encode(msgspec.structs.replace(_decode_reject(value), detail=""))
    except UNREADABLE:
        return value


class Topic(NamedTuple):
    """How the records of a topic are read and compared.

    Attributes:
        name: the topic's name, without the prefix.
        check: under which differences are reported.
        subject: the names of what makes the subject, and the fields, as far as a record has them.
        content: returns the part of a record that must be equal.
    """

    name: str
    check: Check
    decode: Callable[[bytes], Any]
    subject: Mapping[str, str]
    content: Callable[[bytes], bytes] = bytes

    def subject_of(self, decoded: Any) -> Subject:
        """Return the subject of a record."""
        return tuple(
            (name, getattr(decoded, field))
            for name, field in self.subject.items()
            if getattr(decoded, field, UNSET) is not UNSET
        )


_ANSWER = {name: name for name in ("dataset", "run", "step", "part", "request")}
_REJECT = {"dataset": "dataset", "run": "run", "log offset": "offset"}
_ODOMETER = {name: name for name in ("dataset", "user", "offset")}
_TOPICS = {
    Channel.HALTS: Topic(topics.HALTS, Check.HALTS, decode_answer, _ANSWER),
    Channel.REJECTS: Topic(topics.REJECTS, Check.REJECTS, _decode_reject, _REJECT, _without_detail),
    Channel.ODOMETER: Topic(topics.ODOMETER, Check.ODOMETER, decode_odometer, _ODOMETER),
}


class Digests:
    """A set whose members can be marked, in nine bytes each.

    Eight are a digest with a new key, so nothing can be made to look like a member.

    Attributes:
        marks: the marks of all members, 0 at first.
    """

    def __init__(self, members: Iterable[object]) -> None:
        self._key = secrets.token_bytes(32)
        digests = np.unique(np.fromiter(map(self._digest, members), dtype=np.uint64))
        self._sorted: Sequence[int] = memoryview(digests)  # type: ignore[arg-type]
        self.marks = bytearray(len(digests))

    def mark(self, member: object, mark: int = 1) -> bool:
        """Mark a member; return False if it is none."""
        if (at := self._find(member)) is None:
            return False
        self.marks[at] = mark
        return True

    def mark_of(self, member: object) -> int | None:
        """Return the mark of a member; None if it is none."""
        return None if (at := self._find(member)) is None else self.marks[at]

    def _find(self, member: object) -> int | None:
        digest = self._digest(member)
        at = bisect_left(self._sorted, digest)
        return at if at < len(self._sorted) and self._sorted[at] == digest else None

    def _digest(self, member: object) -> int:
        hashed = hashlib.blake2b(encode(member), key=self._key, digest_size=8)
        return int.from_bytes(hashed.digest(), "big")


class Published:
    """The records of one topic in one partition."""

    def __init__(
        self,
        archive: Archive,
        channel: Channel,
        outbox: Sequence[Output],
        result: PartitionVerified,
    ) -> None:
        """Read the topic of a channel, and count signatures in the result."""
        self.matched = 0  # outputs that were found
        self.outbox = [output for output in outbox if output.channel is channel]
        self._archive, self._topic, self._result = archive, _TOPICS[channel], result
        self._extent = archive.extent(self._topic.name, result.partition)
        self._awaited = set(map(self._content, self.outbox))
        self._known = Digests(map(self._checked, self.records()))
        self._lost: dict[Subject, tuple[int, bytes]] = {}  # the offset of the log, and the value
        self._more = 0  # findings that are only counted

    def records(self) -> Iterator[ArchivedRecord]:
        """Yield all records of the topic."""
        return self._archive.read(self._topic.name, self._result.partition, self._extent)

    def expect(self, offset: int, output: Output, *, required: bool) -> None:
        """Look up an output of the log; if it is required, the topic or the outbox must have it."""
        content = self._content(output)
        if self._known.mark(content, _GENUINE):
            self.matched += 1
        elif content in self._awaited:
            self._result.in_outbox += 1
        elif required and self._extent.start and not self.matched:
            # Before the first record of the topic, records may have been deleted with time.
            self._result.expired += 1
        elif required and len(self._lost) < KEPT_FINDINGS:
            subject = self._topic.subject_of(self._topic.decode(output.value))
            self._lost[subject] = offset, output.value
        else:
            self._more += required

    def end(self, began: int) -> None:
        """Add the findings after the end of the log.

        Args:
            began: the offset from which the log was replayed; earlier outputs are unknown.
        """
        add = partial(self._result.add, self._topic.check)
        records = self._foreign(began) if 0 in self._known.marks else iter(())
        foreign = list(islice(records, KEPT_FINDINGS))
        self._more += sum(1 for _ in records)
        genuine = self._genuine({subject for _, _, subject in foreign} - self._lost.keys())
        for record, offset, subject in foreign:
            lost = self._lost.pop(subject, None)
            value = genuine.get(subject) if lost is None else lost[1]
            problem = "the log has no such output: the record was not written by a worker"
            if value is not None:
                problem = "the log has another output: this record contradicts it"
            about = {**dict(subject), "at": f"{self._topic.name} {record.offset}"}
            expected, found = _differing(_fields(value), _fields(record.value))
            add(problem, offset=offset, about=about, expected=expected, found=found)
        for subject, (offset, value) in self._lost.items():
            problem = "this output of the log is neither in the topic nor in the outbox"
            add(problem, offset=offset, about=dict(subject), expected=_fields(value))
        self._result.counts[self._topic.check] += self._more

    def _content(self, record: Output | ArchivedRecord) -> tuple[bytes | None, bytes | None]:
        if record.value is None or tombstone_offset(record.value) is not None:
            return record.key, None
        return record.key, self._topic.content(record.value)

    def _checked(self, record: ArchivedRecord) -> tuple[bytes | None, bytes | None]:
        """Return a record's content. Missing signatures are counted: a worker may have no key."""
        self._result.without_signature += record.signed is False
        self._result.signed += bool(record.signed) and record.unsigned is None
        if record.unsigned is not None:
            problem = f"the signature is not one of a trusted key: {record.unsigned}"
            about = {"at": f"{self._topic.name} {record.offset}"}
            self._result.add(Check.SIGNATURES, problem, about=about)
        if record.is_damaged:
            about = {"at": f"{self._topic.name} {record.offset}"}
            self._result.add(self._topic.check, DAMAGED, about=about)
        return self._content(record)

    def _foreign(self, began: int) -> Iterator[tuple[ArchivedRecord, int | None, Subject]]:
        """Yield the foreign records once, with their offset of the log and subject, if readable."""
        for record in self.records():
            content = self._content(record)
            if self._known.mark_of(content):
                continue
            self._known.mark(content, _FOREIGN)
            if record.value is None and began:
                continue  # a tombstone may be older than the replay, and contains no offset
            try:
                decoded = self._topic.decode(record.value or b"")
                if decoded.offset >= began:
                    yield record, decoded.offset, self._topic.subject_of(decoded)
            except UNREADABLE:
                yield record, None, (("topic offset", record.offset),)

    def _genuine(self, subjects: set[Subject]) -> Mapping[Subject, bytes]:
        """Return the genuine records with these subjects."""
        found: dict[Subject, bytes] = {}
        for record in self.records() if subjects else ():
            mark = self._known.mark_of(self._content(record))
            if mark == _GENUINE and record.value is not None:
                subject = self._topic.subject_of(self._topic.decode(record.value))
                if subject in subjects:
                    found[subject] = record.value
        return found


def _fields(value: bytes | None) -> Any:
    """Return the fields of a record, or its bytes if it cannot be read."""
    if value is None:
        return None
    try:
        return msgspec.msgpack.decode(value)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return value


def _differing(expected: Any, found: Any) -> tuple[Any, Any]:
    """Return the fields in which two records differ."""
    if not isinstance(expected, dict) or not isinstance(found, dict):
        return expected, found
    names = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    return {n: expected.get(n) for n in names}, {n: found.get(n) for n in names}
