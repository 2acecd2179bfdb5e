"""What was published, held against what the log gives.

Of every record that a topic has, eight bytes are kept: a digest under a key that was drawn just
now, so that nobody can have made one record look like another. What the log gives has to be among
them, and nothing else may be. Workers that take over publish some records again: that does no harm.

    gives it, has it        fits
    has it, not given       somebody else wrote it: shown, with what the log gives in its place
    gives it, has it not    lost; but for what may still be in the outbox, what came after the state
                            was read, and what is older than anything that the topic still has
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

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
"""Outputs that are looked up together."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError)


class Topic(NamedTuple):
    """What differs between the topics.

    Attributes:
        content: what of a record has to be as the log gives it.
        place: what a record is about: two of one place contradict each other.
    """

    check: Check
    decode: Callable[[bytes], Any]
    content: Callable[[bytes | None], bytes]
    place: Callable[[Any], dict[str, Any]]


def _whole(value: bytes | None) -> bytes:
    return b"" if value is None else value


def _without_detail(value: bytes | None) -> bytes:
    """A reject without its words for people, which another version of a library may choose."""
    try:
        return encode(msgspec.structs.replace(_decode_reject(value or b""), detail=""))
    except _UNREADABLE:
        return value or b""


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

HALTS = Topic(Check.HALTS, decode_answer, _whole, _place_of_answer)
REJECTS = Topic(Check.REJECTS, _decode_reject, _without_detail, _place_of_reject)
ODOMETER = Topic(Check.ODOMETER, _decode_odometer, _whole, _place_of_odometer)


class MissingOutput(NamedTuple):
    """An output of the log that the topic has not."""

    offset: int  # of the record that led to it
    value: bytes


class Published:
    """One topic, in one partition.

    Attributes:
        extent: of what is compared.
        matched: how many outputs of the log were found.
        expired: how many may be gone because the topic keeps its records for a while only.
        awaited: how many are not there yet, and are in the outbox.
        signed: how many have the signature of a trusted key, if keys are given.
        bare: how many have none, then.
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
        for record in self._records():
            kept += self._digest(record.key, record.value)
            self._look_at_signature(record)
        self._known: Digests = np.unique(np.frombuffer(bytes(kept), dtype=np.uint64))
        self._seen = np.zeros(len(self._known), dtype=np.bool_)
        self._pending: list[
            tuple[MissingOutput, bytes, bool]
        ] = []  # with its digest; whether it must be
        self._lost: list[MissingOutput] = []
        self._lost_count = 0
        self._outbox: set[bytes] = set()

    def keep(self, outbox: Sequence[Output]) -> None:
        """These are still in the outbox: they may be missing."""
        self._outbox |= {self._digest(output.key, output.value) for output in outbox}

    def give(self, offset: int, output: Output, *, required: bool) -> None:
        """The log gives an output.

        Args:
            offset: of the record that led to it.
            output: which.
            required: whether the topic, or the outbox, must have it by now.
        """
        digest = self._digest(output.key, output.value)
        self._pending.append((MissingOutput(offset, output.value), digest, required))
        if len(self._pending) >= _AT_A_TIME:
            self._look_up()

    def end(self, began: int) -> None:
        """The log gives nothing more: say what does not fit.

        Args:
            began: where the log was applied from: what records before it gave is not known.
        """
        self._look_up()
        strangers, more = ([], 0) if self._seen.all() else self._strangers(began)
        places = {_frozen(place) for _, _, place in strangers}
        lost = {_frozen(self._place_of(given)): given for given in self._lost}
        genuine = self._genuine(places - lost.keys()) if places - lost.keys() else {}
        for record, said, place in strangers:
            here = _frozen(place)
            given = lost.pop(here, None)
            expected = genuine.get(here) if given is None else given.value
            self._say_stranger(record, said, place, expected)
            self._lost_count -= given is not None
        self._findings.count(self.topic.check, more)
        for given in lost.values():
            self._say_lost(given)
        self._findings.count(self.topic.check, max(0, self._lost_count - len(lost)))

    def genuine(self) -> Iterator[ArchivedRecord]:
        """The records that the log gives; tombstones have no value."""
        for record in self._records():
            if self._is_genuine(record):
                yield record

    def _records(self) -> Iterator[ArchivedRecord]:
        return self._archive.read(self.topic.check, self._partition, self.extent)

    def _look_at_signature(self, record: ArchivedRecord) -> None:
        """A signature that is there has to be good: who has no key can only leave it out."""
        if record.signed is None:
            return
        self.bare += not record.signed
        self.signed += record.signed and record.unsigned is None
        if record.unsigned is not None:
            self._findings.add(
                Check.SIGNATURES,
                f"the signature is none of a trusted key: {record.unsigned}",
                about={"at": f"{self.topic.check} {record.offset}"},
            )

    def records(self) -> Iterator[ArchivedRecord]:
        """All that the topic has, whoever wrote it."""
        return self._records()

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
                # Before the first one that is there, records may have been deleted with time.
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

    def _strangers(
        self, began: int
    ) -> tuple[list[tuple[ArchivedRecord, Any, dict[str, Any]]], int]:
        """Records that the log does not give: those that are shown, and how many more."""
        strangers: list[tuple[ArchivedRecord, Any, dict[str, Any]]] = []
        told: set[bytes] = set()
        more = 0
        for record in self._records():
            digest = self._digest(record.key, record.value)
            if digest in told or self._is_genuine(record):
                continue
            if record.value is None and began:
                continue  # a tombstone, perhaps of before: nothing in it says where it comes from
            try:
                said = self.topic.decode(record.value or b"")
                if said.offset < began:
                    continue
                place = self.topic.place(said)
            except _UNREADABLE:
                said, place = None, {"topic offset": record.offset}
            if len(told) == KEPT_FINDINGS:
                more += 1
                continue
            told.add(digest)
            strangers.append((record, said, place))
        return strangers, more

    def _genuine(self, places: set[Any]) -> dict[Any, bytes]:
        """What the topic has of these places that the log gives."""
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

    def _say_stranger(
        self, record: ArchivedRecord, said: Any, place: dict[str, Any], expected: bytes | None
    ) -> None:
        problem = "the log gives no such record: somebody else than the workers wrote it"
        if expected is not None:
            problem = "the log gives another record: this one contradicts it"
        ours, theirs = _apart(_told(expected), _told(record.value))
        self._findings.add(
            self.topic.check,
            problem,
            offset=getattr(said, "offset", None),
            about={**place, "at": f"{self.topic.check} {record.offset}"},
            expected=ours,
            found=theirs,
        )

    def _say_lost(self, given: MissingOutput) -> None:
        self._findings.add(
            self.topic.check,
            "the log gives it, and neither the topic nor the outbox has it",
            offset=given.offset,
            about=self._place_of(given),
            expected=_told(given.value),
        )


def _told(value: bytes | None) -> Any:
    """A record as its fields, as far as it can be read."""
    if value is None:
        return None
    try:
        return msgspec.msgpack.decode(value)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return value


def _apart(expected: Any, found: Any) -> tuple[Any, Any]:
    """Of two records only those fields that differ."""
    if not isinstance(expected, dict) or not isinstance(found, dict):
        return expected, found
    names = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    return {n: expected.get(n) for n in names}, {n: found.get(n) for n in names}


def _frozen(place: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(place.items())
