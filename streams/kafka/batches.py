"""Record batches: the one place that decides which records a batch holds.

Every program reads topics with this module: workers, commands that replay the log, answerers,
clients and pages. A batch holds these records:

1. A control batch marks the end of a transaction and holds none.
2. The content of any other batch is expanded if it is compressed. It has at most
   ``EXPANDED_BYTES``.
3. The content is decoded. It has as many records as the batch declares and nothing else. Their
   offsets increase and lie within the batch. None has more than ``MAX_HEADERS`` headers.

A batch that fails step 2 or 3 is *unreadable*. It counts as one record at its first offset. The
value of that record is a zero byte, then the stored batch from its attributes on. No request begins
with a zero byte, so the ledger rejects it. The other offsets of the batch hold nothing.

Brokers store such batches: 600 KB of gzip can hold 600 MiB of zeros, and a broker does not compare
the offsets within an uncompressed batch. Two readers that treat one of them differently read two
different logs, so this rule is a part of what a log means.

Two releases of a codec's library may disagree about malformed input. Then the heads of the hash
chain differ, and a replay stops (``streams.replay.log_replay``).

A batch of *events* holds the events of many users, and one user's record must not decide whether
those of other users count. ``EventBatch`` therefore reads the same format record by record. A
record that is longer than ``EVENT_BYTES``, or malformed, counts as a zero byte at its own offset.
If the content ends early, cannot be expanded, or has offsets out of order, everything after that
place is one such record. Whether a record is read does not depend on the size of the batch, up to
``STREAMED_BYTES``: a producer that sends more content in one batch is faulty or hostile.

A batch with a wrong length, format or checksum was damaged on its way or on a disk. Reading it
raises ``CorruptBatch``; it never becomes a record.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any, NamedTuple

import cramjam
import numpy as np
from crc32c import crc32c

EXPANDED_BYTES = 9 * 1024 * 1024
"""The largest content of a batch that is read; the largest request fits."""
MAX_HEADERS = 1000
"""The largest number of headers per record. Otherwise 9 MiB of empty headers would take hundreds of
MiB as objects."""
FETCHED_BYTES = 64 * 1024 * 1024
"""Content that a client takes from one fetch. It fetches the rest again."""

EVENT_BYTES = 64 * 1024
"""The longest record of a batch of events. A client holds a thousand of them at once."""
STREAMED_BYTES = 1024 * 1024 * 1024
"""Content of a batch of events that is expanded, piece by piece. It bounds the time, not memory."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">i")
_LENGTH_AT, _PREFIX = 8, 12  # the length counts what follows it
_ATTRIBUTES_AT = 21  # the checksum covers the batch from here on
_FORMAT = 2
_CODEC, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_XERIAL, _XERIAL_HEADER = b"\x82SNAPPY\0", 16
_SMALL = 64 * 1024
"""Content up to this size is decoded once and kept. Larger content is checked, then decoded again
record by record: 9 MiB can hold a million records, which take far more memory as objects."""

Header = tuple[str, bytes | None]
_Decoded = tuple[int, int, bytes | None, bytes | None, list[Header]]
"""Timestamp and offset, relative to those of the batch, key, value, headers."""


class CorruptBatch(Exception):
    """A batch is not as a broker stored it, or has a format from before Kafka 0.11."""


class Gap(Exception):
    """A topic has nothing at an offset: neither a record nor a batch that holds none there.

    Attributes:
        offset: the first one that is missing.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(f"there is nothing at offset {offset}")


class FetchedRecord(NamedTuple):
    """A record of a batch."""

    offset: int
    timestamp: int  # milliseconds since 1970
    timestamp_type: int  # 0: set by the producer; 1: set by the broker
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    leader_epoch: int  # counts the elections of the partition's leader


class RecordBatch:
    """A batch; iterate over it for the records that it holds.

    The names are those that both Kafka clients use for batches.

    Attributes:
        base_offset: the first offset.
        last_offset: the last offset, even if compaction has removed its record.
        leader_epoch: the leader epoch in which the batch was written.
        producer_id: -1 if the producer is neither idempotent nor transactional.
        is_transactional: whether a transaction wrote it.
        is_control_batch: whether it marks the end of a transaction.
        is_readable: whether its records can be read; see the module.
        size: bytes of the content, or of the batch if it is unreadable.
    """

    def __init__(self, raw: memoryview) -> None:
        """Read a batch.

        Raises:
            CorruptBatch: see the module.
        """
        if len(raw) < _HEADER.size:
            raise CorruptBatch(f"a batch has {len(raw)} bytes, fewer than its header")
        (
            self.base_offset,
            _,
            self.leader_epoch,
            form,
            checksum,
            attributes,
            last_delta,
            first_timestamp,
            max_timestamp,
            self.producer_id,
            _,
            _,
            count,
        ) = _HEADER.unpack_from(raw)
        if form != _FORMAT:
            raise CorruptBatch(f"the batch at offset {self.base_offset} has format {form}, not 2")
        if crc32c(raw[_ATTRIBUTES_AT:]) != checksum:
            raise CorruptBatch(f"the batch at offset {self.base_offset} has a wrong checksum")
        self.last_offset: int = self.base_offset + last_delta
        self.is_transactional = bool(attributes & _TRANSACTIONAL)
        self.is_control_batch = bool(attributes & _CONTROL)
        self.is_readable = True
        self._timestamp_type = int(bool(attributes & _APPEND_TIME))
        self._timestamp: int = max_timestamp if self._timestamp_type else first_timestamp
        self._content, self._count = b"", 0 if self.is_control_batch else count
        self._decoded: Sequence[_Decoded] | None = None
        if not self.is_control_batch:
            try:
                self._read(attributes & _CODEC, raw[_HEADER.size :], last_delta)
            except _Unreadable:
                self.is_readable = False
                self._content = b"\0" + bytes(raw[_ATTRIBUTES_AT:])
                self._decoded = [(0, 0, None, self._content, [])]
        self.size = len(self._content)

    @property
    def next_offset(self) -> int:
        """The first offset after the batch."""
        return self.last_offset + 1

    def validate_crc(self) -> bool:
        """Return True: the constructor rejects a batch with a wrong checksum."""
        return True

    def __iter__(self) -> Iterator[FetchedRecord]:
        decoded = self._decoded
        return map(
            self._record, _decode(self._content, self._count) if decoded is None else decoded
        )

    def _read(self, codec: int, packed: memoryview, last_delta: int) -> None:
        self._content = _expand(codec, packed)
        decoded: Any = _decode(self._content, self._count)
        if len(self._content) <= _SMALL:
            decoded = self._decoded = list(decoded)
        before = -1
        for _, offset_delta, *_ in decoded:
            if not before < offset_delta <= last_delta:
                raise _Unreadable
            before = offset_delta

    def _record(self, decoded: _Decoded) -> FetchedRecord:
        timestamp_delta, offset_delta, key, value, headers = decoded
        return FetchedRecord(
            self.base_offset + offset_delta,
            self._timestamp if self._timestamp_type else self._timestamp + timestamp_delta,
            self._timestamp_type,
            key,
            value,
            headers,
            self.leader_epoch,
        )


class EventBatch(RecordBatch):
    """A batch of events, of which only records that cannot be read are left out; see the module."""

    def _read(self, codec: int, packed: memoryview, last_delta: int) -> None:
        self._pieces = partial(_pieces, codec, packed)
        self._last_delta = last_delta
        try:
            super()._read(codec, packed, last_delta)
        except _Unreadable:
            self._decoded = None
        else:
            self._pieces = partial(_in_one_piece, self._content)

    def __iter__(self) -> Iterator[FetchedRecord]:
        # Content that is decoded at once has at most _SMALL bytes, and so has each of its records.
        if self._decoded is not None or self.is_control_batch:
            return super().__iter__()
        return map(self._record, self._events())

    def _events(self) -> Iterator[_Decoded]:
        content, before = _Stream(self._pieces()), -1
        try:
            for _ in range(self._count):
                event = content.next_event()
                if not before < event[1] <= self._last_delta:
                    raise _Unreadable
                before = event[1]
                yield event
        except Exception:  # each codec has exceptions of its own
            if before < self._last_delta:
                yield (0, before + 1, None, b"\0", [])


def batches_of(fetched: bytes) -> Iterator[RecordBatch]:
    """Return the complete batches (the last may be cut off), or raise ``CorruptBatch``."""
    return map(RecordBatch, _slices(fetched))


def records_from(
    batch: RecordBatch, first: int, end: int, *, may_have_gaps: bool = False
) -> Iterator[FetchedRecord]:
    """Return the records of a batch at the offsets first to end - 1.

    It is the batch with the offset ``first``, or a later one if that offset is missing: a ``Gap``,
    unless compaction or retention may have removed records.
    """
    if batch.base_offset > first and not may_have_gaps:
        raise Gap(first)
    for record in batch:
        if record.offset >= end:
            return
        if record.offset > first and not may_have_gaps:
            raise Gap(first)
        if record.offset >= first:
            yield record
            first = record.offset + 1
    holds_all = batch.is_readable and not batch.is_control_batch and not may_have_gaps
    if holds_all and first < batch.next_offset:
        raise Gap(first)


class FetchedBatches:
    """The batches of one fetch, in the interface that both Kafka clients have for them.

    Args:
        fetched: as the broker sent it.
        kind: the batches' kind.
        control: the client's own batch: a client looks into control batches by itself.
        corrupt: the client's error for a corrupt batch.
    """

    def __init__(
        self,
        fetched: bytes,
        kind: type[RecordBatch],
        control: Callable[[memoryview], Any],
        corrupt: type[Exception],
    ) -> None:
        self._size = len(fetched)
        self._slices = _slices(fetched)
        self._next = next(self._slices, None)
        self._kind, self._control, self._corrupt = kind, control, corrupt
        self._taken = 0

    def size_in_bytes(self) -> int:
        """Return how much was fetched."""
        return self._size

    def has_next(self) -> bool:
        """Return whether there is another batch to take."""
        return self._next is not None and self._taken < FETCHED_BYTES

    def next_batch(self) -> Any:
        """Return the next batch; None if there is none to take."""
        if self._next is None or not self.has_next():
            return None
        raw = self._next
        try:
            batch = self._kind(raw)
        except CorruptBatch as corrupt:
            raise self._corrupt(str(corrupt)) from corrupt
        self._taken += batch.size
        self._next = next(self._slices, None)
        return self._control(raw) if batch.is_control_batch else batch


def _slices(fetched: bytes) -> Iterator[memoryview]:
    view, at = memoryview(fetched), 0
    while at + _PREFIX <= len(view):
        (length,) = _LENGTH.unpack_from(view, at + _LENGTH_AT)
        end = at + _PREFIX + max(length, 0)  # a batch without a header is refused as corrupt
        if end > len(view):
            return
        yield view[at:end]
        at = end


class _Unreadable(Exception):
    """The content of a batch cannot be expanded or decoded."""


# --- expand -------------------------------------------------------------------------------------


def _expand(codec: int, packed: memoryview) -> bytes:
    """Return up to ``EXPANDED_BYTES`` of content in little more memory, or ``_Unreadable``."""
    try:
        content = _CODECS[codec](packed)
    except Exception as error:  # each codec has exceptions of its own
        raise _Unreadable from error
    if len(content) > EXPANDED_BYTES:
        raise _Unreadable
    return content


def _expand_gzip(packed: memoryview) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
        return stream.read(EXPANDED_BYTES + 1)


def _expand_snappy(packed: memoryview) -> bytes:
    """Expand one block or, as Java clients write it, many. Each declares its expanded size."""
    whole = bytes(packed)
    content = bytearray()
    for block in _xerial_blocks(whole) if whole.startswith(_XERIAL) else [whole]:
        if len(content) + int(cramjam.snappy.decompress_raw_len(block)) > EXPANDED_BYTES:
            raise _Unreadable
        content += cramjam.snappy.decompress_raw(block)
    return bytes(content)


def _xerial_blocks(whole: bytes) -> Iterator[bytes]:
    at = _XERIAL_HEADER
    while at < len(whole):
        (length,) = _LENGTH.unpack_from(whole, at)
        at += _LENGTH.size
        if not 0 < length <= len(whole) - at:
            raise _Unreadable
        yield whole[at : at + length]
        at += length


def _expand_with(expand_into: Callable[[bytes, Any], int]) -> Callable[[memoryview], bytes]:
    """Expand into a buffer of the largest size, of which only the used part is ever touched."""

    def expand(packed: memoryview) -> bytes:
        buffer = np.empty(EXPANDED_BYTES, dtype=np.uint8)
        return buffer[: int(expand_into(bytes(packed), buffer))].tobytes()

    return expand


_CODECS: dict[int, Callable[[memoryview], bytes]] = {
    0: bytes,
    1: _expand_gzip,
    2: _expand_snappy,
    3: _expand_with(cramjam.lz4.decompress_into),
    4: _expand_with(cramjam.zstd.decompress_into),
}


# --- expand piece by piece ----------------------------------------------------------------------

_PIECE = 64 * 1024
_LONGEST_VARINT = 10
_SNAPPY_RATIO = 22  # three bytes repeat at most 64


def _in_one_piece(content: bytes) -> Iterator[bytes]:
    yield content


def _pieces(codec: int, packed: memoryview) -> Iterator[bytes]:
    """Return the content of a batch in pieces, or an error of its codec where it is malformed.

    A piece is small, or not much larger than the batch itself.
    """
    match codec:
        case 0:
            yield bytes(packed)
        case 1:
            with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
                while piece := stream.read(_PIECE):
                    yield piece
        case 2:
            whole = bytes(packed)
            for block in _xerial_blocks(whole) if whole.startswith(_XERIAL) else [whole]:
                if cramjam.snappy.decompress_raw_len(block) > _SNAPPY_RATIO * len(block):
                    raise _Unreadable
                yield bytes(cramjam.snappy.decompress_raw(block))
        case 3:
            yield from _through_a_pipe(cramjam.lz4.decompress_into, packed)
        case 4:
            yield from _through_a_pipe(cramjam.zstd.decompress_into, packed)
        case _:
            raise _Unreadable


def _through_a_pipe(
    expand_into: Callable[[bytes, Any], int], packed: memoryview
) -> Iterator[bytes]:
    """Expand in a thread that waits for its reader: cramjam itself has no reader of pieces."""
    failures: list[str] = []  # not the error: its traceback would keep the output open

    def expand(output: Any) -> None:
        try:
            expand_into(bytes(packed), output)
        except Exception as error:  # malformed, or the reader has closed the pipe
            failures.append(str(error))

    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as pipe:
        try:
            output = cramjam.File(f"/dev/fd/{writing}", read=False, write=True, truncate=False)
        finally:
            os.close(writing)
        thread = Thread(target=expand, args=(output,), daemon=True)
        del output  # the thread's end closes it, which ends the pipe
        thread.start()
        while piece := pipe.read(_PIECE):
            yield piece
    thread.join()
    if failures:
        raise _Unreadable(*failures)


class _Stream:
    """Content of which only a few pieces are held."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._held, self._left = pieces, bytearray(), STREAMED_BYTES

    def next_event(self) -> _Decoded:
        """Return the next record, with a zero byte as its value if it is too long or malformed.

        Raises:
            _Unreadable: there is none.
            IndexError: there is none.
        """
        self._hold(_LONGEST_VARINT)
        length, start = _varint(self._held, 0)
        if length < 0:
            raise _Unreadable
        self._hold(start + min(length, EVENT_BYTES))
        timestamp_delta, at = _varint(self._held, start + 1)
        offset_delta, _ = _varint(self._held, at)
        event: _Decoded = (timestamp_delta, offset_delta, None, b"\0", [])
        if length <= EVENT_BYTES:
            with suppress(_Unreadable):
                (event,) = _decode(bytes(self._held[: start + length]), 1)
        self._skip(start + length)
        return event

    def _hold(self, size: int) -> bool:
        """Hold this many bytes, or all that are left; return whether there is one at all."""
        while len(self._held) < size and (piece := next(self._pieces, b"")):
            self._left -= len(piece)
            if self._left < 0:
                raise _Unreadable
            self._held += piece
        return bool(self._held)

    def _skip(self, size: int) -> None:
        while size > len(self._held):
            size -= len(self._held)
            self._held.clear()
            if not self._hold(1):
                raise _Unreadable
        del self._held[:size]


# --- decode -------------------------------------------------------------------------------------


def _decode(content: bytes, count: int) -> Iterator[_Decoded]:
    """Decode all records of a batch, or raise ``_Unreadable``."""
    at = 0
    try:
        for _ in range(count):
            length, at = _varint(content, at)
            end = at + length
            timestamp_delta, at = _varint(content, at + 1)  # a byte of attributes without meaning
            offset_delta, at = _varint(content, at)
            key, at = _field(content, at)
            value, at = _field(content, at)
            number, at = _varint(content, at)
            if not 0 <= number <= MAX_HEADERS:
                raise _Unreadable
            headers: list[Header] = []
            for _ in range(number):
                name, at = _field(content, at)
                header, at = _field(content, at)
                if name is None:
                    raise _Unreadable
                # Brokers store names that are not UTF-8, and Java clients read them like this.
                headers.append((name.decode("utf-8", "replace"), header))
            if at != end:
                raise _Unreadable
            yield timestamp_delta, offset_delta, key, value, headers
    except IndexError as error:
        raise _Unreadable from error
    if at != len(content):
        raise _Unreadable


def _field(content: bytes, at: int) -> tuple[bytes | None, int]:
    """Return bytes that follow their length, and where they end; None for a negative length."""
    length, at = _varint(content, at)
    if length < 0:
        return None, at
    end = at + length
    if end > len(content):
        raise _Unreadable
    return content[at:end], end


def _varint(content: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return a number, zigzag in groups of seven bits, and where it ends."""
    byte = content[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number = shift = 0
    while byte >= 0x80:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 63:
            raise _Unreadable
        at += 1
        byte = content[at]
    number |= byte << shift
    return (number >> 1) ^ -(number & 1), at + 1
