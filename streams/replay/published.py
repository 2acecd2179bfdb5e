"""Compares the records of a topic with the outputs of the replayed log.

Eight bytes are kept of every record of the topic: a keyed digest. The key is new, so no record can
be made to look like another one. Duplicates are harmless: a worker that acquires a partition may
publish some outputs again.

    output of the log   record of the topic
    yes                 yes                  fits
    no                  yes                  foreign: reported with the output that belongs there
    yes                 no                   lost, unless it may still be in the outbox, came after
                                             the state was read, or is older than the whole topic
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.kafka import topics
from streams.kafka.results import Extent
from streams.ledger.outputs import Output
from streams.records import (
    Answer,
    Halted,
    OdometerRecord,
    Rejected,
    decode_answer,
    encode,
    tombstone_offset,
)
from streams.replay.archive import Archive, ArchivedRecord
from streams.replay.findings import KEPT_FINDINGS, Check, Findings

Digests = NDArray[np.uint64]

_AT_A_TIME = 2**14
"""Outputs that are looked up at once."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError)


class Topic(NamedTuple):
    """How the records of a topic are read and compared.

    Attributes:
        name: of the topic, without the prefix.
        check: under which differences are reported.
        content: returns the part of a record that must be equal.
        place: returns the subject of a record; two records with one subject contradict each other.
    """

    name: str
    check: Check
    decode: Callable[[bytes], Any]
    content: Callable[[bytes], bytes]
    place: Callable[[Any], dict[str, Any]]


def _without_detail(value: bytes) -> bytes:
    """Return a reject without its text for people, which may differ between releases."""
    try:
        return encode(msgspec.structs.replace(_decode_reject(value), detail=""))
    except _UNREADABLE:
        return value


def _place_of_answer(answer: Answer) -> dict[str, Any]:
    names = ("dataset", "run", "step")
    place = {name: getattr(answer, name) for name in names if hasattr(answer, name)}
    if isinstance(answer, Halted):
        return {**place, "part": answer.part}
    if "step" not in place:
        place["request"] = getattr(answer, "request", None)
    return place


def _place_of_reject(rejected: Rejected) -> dict[str, Any]:
    return {"dataset": rejected.dataset, "run": rejected.run, "log offset": rejected.offset}


def _place_of_odometer(odometer: OdometerRecord) -> dict[str, Any]:
    names = ("dataset", "user", "offset")
    return {name: getattr(odometer, name) for name in names}


_decode_reject = msgspec.msgpack.Decoder(Rejected).decode
_decode_odometer = msgspec.msgpack.Decoder(OdometerRecord).decode

HALTS = Topic(topics.HALTS, Check.HALTS, decode_answer, bytes, _place_of_answer)
REJECTS = Topic(topics.REJECTS, Check.REJECTS, _decode_reject, _without_detail, _place_of_reject)
ODOMETER = Topic(topics.ODOMETER, Check.ODOMETER, _decode_odometer, bytes, _place_of_odometer)


class MissingOutput(NamedTuple):
    """An output of the log that the topic lacks."""

    offset: int  # of the record that led to it
    value: bytes


class Published:
    """The records of one topic in one partition.

    Attributes:
        extent: the part of the topic that is compared.
        matched: the number of outputs that were found.
        expired: the number of outputs that the topic may have deleted because of their age.
        awaited: the number of outputs that are in the outbox and not in the topic.
        signed: the number of records with a signature of a trusted key, if keys are given.
        bare: the number of records without a signature, if keys are given.
    """

    def __init__(
        self,
        archive: Archive,
        partition: int,
        topic: Topic,
        extent: Extent,
        findings: Findings,
    ) -> None:
        self.topic = topic
        self.extent = extent
        self.matched = self.expired = self.awaited = 0
        self.signed = self.bare = 0
        self._archive = archive
        self._partition = partition
        self._findings = findings
        self._key = secrets.token_bytes(32)
        kept = bytearray()
        for record in self.records():
            kept += self._digest(record.key, record.value)
            self._check_signature(record)
        self._known: Digests = np.unique(np.frombuffer(bytes(kept), dtype=np.uint64))
        self._seen = np.zeros(len(self._known), dtype=np.bool_)
        self._pending: list[tuple[MissingOutput, bytes, bool]] = []  # digest; whether required
        self._lost: list[MissingOutput] = []
        self._lost_count = 0
        self._outbox: set[bytes] = set()

    def excuse(self, outbox: Sequence[Output]) -> None:
        """Accept that the topic lacks these outputs, because they are in the outbox."""
        self._outbox |= {self._digest(output.key, output.value) for output in outbox}

    def expect(self, offset: int, output: Output, *, required: bool) -> None:
        """Note an output of the log; if it is required, the topic or the outbox must have it."""
        digest = self._digest(output.key, output.value)
        self._pending.append((MissingOutput(offset, output.value), digest, required))
        if len(self._pending) >= _AT_A_TIME:
            self._look_up()

    def end(self, began: int) -> None:
        """Add the findings after the end of the log.

        Args:
            began: the offset from which the log was replayed; earlier outputs are unknown.
        """
        self._look_up()
        foreign, more = ([], 0) if self._seen.all() else self._foreign(began)
        places = {_frozen(place) for _, _, place in foreign}
        lost = {_frozen(self._place_of(given)): given for given in self._lost}
        genuine = self._genuine(places - lost.keys()) if places - lost.keys() else {}
        for record, decoded, place in foreign:
            here = _frozen(place)
            given = lost.pop(here, None)
            expected = genuine.get(here) if given is None else given.value
            self._add_foreign(record, decoded, place, expected)
            self._lost_count -= given is not None
        self._findings.counts[self.topic.check] += more
        for given in lost.values():
            self._add_lost(given)
        self._findings.counts[self.topic.check] += max(0, self._lost_count - len(lost))

    def genuine(self) -> Iterator[ArchivedRecord]:
        """Yield the records that are outputs of the log; tombstones have no value."""
        for record in self.records():
            if self._is_genuine(record):
                yield record

    def records(self) -> Iterator[ArchivedRecord]:
        """Yield all records of the topic."""
        return self._archive.read(self.topic.name, self._partition, self.extent)

    def _check_signature(self, record: ArchivedRecord) -> None:
        """Reject wrong signatures. Missing ones are counted: a worker may have no key."""
        if record.signed is None:
            return
        self.bare += not record.signed
        self.signed += record.signed and record.unsigned is None
        if record.unsigned is not None:
            self._findings.add(
                Check.SIGNATURES,
                f"the signature is not one of a trusted key: {record.unsigned}",
                about={"at": f"{self.topic.name} {record.offset}"},
            )

    def _digest(self, key: bytes | None, value: bytes | None) -> bytes:
        hashed = hashlib.blake2b(key=self._key, digest_size=8)
        hashed.update(b"\0" if key is None else b"\1" + len(key).to_bytes(8, "big") + key)
        if value is None or tombstone_offset(value) is not None:
            hashed.update(b"\0")
        else:
            hashed.update(self.topic.content(value))
        return hashed.digest()

    def _look_up(self) -> None:
        pending, self._pending = self._pending, []
        digests = np.frombuffer(b"".join(digest for _, digest, _ in pending), dtype=np.uint64)
        places = np.searchsorted(self._known, digests)
        there = np.zeros(len(digests), dtype=np.bool_)
        inside = np.flatnonzero(places < len(self._known))
        there[inside] = self._known[places[inside]] == digests[inside]
        self._seen[places[there]] = True
        for number in np.flatnonzero(~there).tolist():
            given, digest, required = pending[number]
            if digest in self._outbox:
                self.awaited += 1
            elif required:
                # Before the first record of the topic, records may have been deleted with time.
                if self.extent.start and not self.matched and not there[:number].any():
                    self.expired += 1
                else:
                    self._lost_count += 1
                    if len(self._lost) < KEPT_FINDINGS:
                        self._lost.append(given)
        self.matched += int(there.sum())

    def _is_genuine(self, record: ArchivedRecord) -> bool:
        digest = np.frombuffer(self._digest(record.key, record.value), dtype=np.uint64)[0]
        place = int(np.searchsorted(self._known, digest))
        return bool(self._seen[place])

    def _foreign(self, began: int) -> tuple[list[tuple[ArchivedRecord, Any, dict[str, Any]]], int]:
        """Return the foreign records that are shown, and the number of further ones."""
        foreign: list[tuple[ArchivedRecord, Any, dict[str, Any]]] = []
        shown: set[bytes] = set()
        more = 0
        for record in self.records():
            digest = self._digest(record.key, record.value)
            if digest in shown or self._is_genuine(record):
                continue
            if record.value is None and began:
                continue  # a tombstone may be older than the replay, and contains no offset
            try:
                decoded = self.topic.decode(record.value or b"")
                if decoded.offset < began:
                    continue
                place = self.topic.place(decoded)
            except _UNREADABLE:
                decoded, place = None, {"topic offset": record.offset}
            if len(shown) == KEPT_FINDINGS:
                more += 1
                continue
            shown.add(digest)
            foreign.append((record, decoded, place))
        return foreign, more

    def _genuine(self, places: set[Any]) -> dict[Any, bytes]:
        """Return the genuine records of these places."""
        found: dict[Any, bytes] = {}
        for record in self.genuine():
            if record.value is None:
                continue
            here = _frozen(self.topic.place(self.topic.decode(record.value or b"")))
            if here in places:
                found[here] = record.value or b""
        return found

    def _place_of(self, given: MissingOutput) -> dict[str, Any]:
        place: dict[str, Any] = self.topic.place(self.topic.decode(given.value))
        return place

    def _add_foreign(
        self, record: ArchivedRecord, decoded: Any, place: dict[str, Any], expected: bytes | None
    ) -> None:
        problem = "the log has no such output: the record was not written by a worker"
        if expected is not None:
            problem = "the log has another output: this record contradicts it"
        ours, theirs = _differing(_fields(expected), _fields(record.value))
        self._findings.add(
            self.topic.check,
            problem,
            offset=getattr(decoded, "offset", None),
            about={**place, "at": f"{self.topic.name} {record.offset}"},
            expected=ours,
            found=theirs,
        )

    def _add_lost(self, given: MissingOutput) -> None:
        self._findings.add(
            self.topic.check,
            "this output of the log is neither in the topic nor in the outbox",
            offset=given.offset,
            about=self._place_of(given),
            expected=_fields(given.value),
        )


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


def _frozen(place: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(place.items())
