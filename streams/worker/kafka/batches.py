"""Record batches as they are in the log, read within bounds, and with their leader epochs.

A batch of 600 KB can hold 600 MiB of zeros. The broker checks such a batch while it streams
through; a client unpacks it into memory. So a compressed batch is measured first. One that would
expand beyond ``EXPANDED_BYTES``, or cannot be expanded, is not read: it counts as one record at its
first offset, whose value is a zero byte and then the batch as it is in the log, from its
attributes on. No request begins with a zero byte, so it comes back on the rejects topic, and none
of its records is applied. Its other offsets hold nothing.

That rule is part of what a log means: applying it again has to give the same state.

Every batch says in which leader epoch it was written, and aiokafka passes over that. A record of a
consumer has a field for a checksum, which only formats before this one fill: there the epoch is.
"""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cramjam
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords

EXPANDED_BYTES = 9 * 1024 * 1024
"""The largest request, and what surrounds it, as one batch. Never changed: see above."""
FETCHED_BYTES = 64 * 1024 * 1024
"""Of one answer to a fetch, compressed batches are read up to this size. The rest comes again."""

UNKNOWN_EPOCH = -1

_LENGTH_AT, _HEAD = 8, 12  # the length counts what follows it
_EPOCH_AT = 12
_MAGIC = 2
_MAGIC_AT, _ATTRIBUTES_AT, _RECORDS_AT = 16, 21, 61
_CODEC_MASK = 0x07
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
_XERIAL = b"\x82SNAPPY\0"


class TooLarge(Exception):
    """A batch expands beyond the bound, or cannot be expanded."""


@dataclass(frozen=True)
class UnreadBatch:
    """A batch of which nothing is read, as one record."""

    batch: Any
    value: bytes
    is_control_batch: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batch, name)

    def __iter__(self) -> Iterator[Any]:
        batch = self.batch
        yield DefaultRecord(
            batch.base_offset, batch.first_timestamp, batch.timestamp_type, None, self.value, []
        )


class BoundedRecords:
    """What aiokafka takes for the batches of a fetch.

    Attributes:
        leader_epoch: of the batch that was given out last.
    """

    def __init__(self, fetched: bytes) -> None:
        self.leader_epoch = UNKNOWN_EPOCH
        self._fetched = fetched
        self._slices = _batches(fetched)
        self._next = next(self._slices, None)
        self._expanded = 0

    def size_in_bytes(self) -> int:
        """As fetched."""
        return len(self._fetched)

    def has_next(self) -> bool:
        """Whether another batch is read."""
        return self._next is not None and self._expanded < FETCHED_BYTES

    def next_batch(self) -> Any:
        """The next batch, or what takes its place."""
        raw = self._next
        if raw is None:
            return None
        self._next = next(self._slices, None)
        if len(raw) < _RECORDS_AT:
            raise CorruptRecordException(f"a batch of {len(raw)} bytes")
        (self.leader_epoch,) = struct.unpack_from(">i", raw, _EPOCH_AT)
        batch = DefaultRecordBatch(raw)
        if not _codec(raw) or batch.is_control_batch:
            return batch
        try:
            self._expanded += expanded_bytes(_codec(raw), raw[_RECORDS_AT:])
        except TooLarge:
            return UnreadBatch(batch, b"\0" + bytes(raw[_ATTRIBUTES_AT:]))
        return batch


class EpochRecords(fetcher.PartitionRecords):
    """The records of a fetch, each with the leader epoch of its batch."""

    def _consumer_record(self, tp: Any, record: Any) -> Any:
        made = super()._consumer_record(tp, record)
        made.checksum = epoch_of(self._records)
        return made


def records_of(fetched: bytes) -> Any:
    """The batches of a fetch; those of formats before the broker's own are left to aiokafka."""
    if all(raw[_MAGIC_AT] == _MAGIC for raw in _batches(fetched)):
        return BoundedRecords(fetched)
    return MemoryRecords(fetched)


def epoch_of(records: Any) -> int:
    """The leader epoch of the batch that was given out last."""
    epoch: int = getattr(records, "leader_epoch", UNKNOWN_EPOCH)
    return epoch


def read_as_written() -> None:
    """From now on every consumer of this process reads within bounds, and says leader epochs."""
    fetcher.MemoryRecords = records_of
    fetcher.PartitionRecords = EpochRecords


def expanded_bytes(codec: int, packed: memoryview | bytes) -> int:
    """How many bytes it expands to; takes no more memory than the bound.

    Raises:
        TooLarge: more than ``EXPANDED_BYTES``, or it cannot be expanded.
    """
    try:
        size = _MEASURES[codec](packed)
    except Exception as error:  # every codec has its own
        raise TooLarge(str(error)) from error
    if size > EXPANDED_BYTES:
        raise TooLarge(f"more than {EXPANDED_BYTES} bytes")
    return size


def _measure_gzip(packed: memoryview | bytes) -> int:
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
        return len(stream.read(EXPANDED_BYTES + 1))


def _measure_snappy(packed: memoryview | bytes) -> int:
    """Snappy says how long a block becomes: Java clients write many blocks, others one."""
    whole = bytes(packed)
    blocks = _xerial_blocks(whole) if whole.startswith(_XERIAL) else iter([whole])
    size = 0
    for block in blocks:
        size += int(cramjam.snappy.decompress_raw_len(block))
        if size > EXPANDED_BYTES:
            break
        cramjam.snappy.decompress_raw(block)  # or fail here
    return size


def _xerial_blocks(whole: bytes) -> Iterator[bytes]:
    at = 16
    while at < len(whole):
        (length,) = struct.unpack_from(">i", whole, at)
        at += 4
        yield whole[at : at + length]
        at += length


def _measure_lz4(packed: memoryview | bytes) -> int:
    return int(cramjam.lz4.decompress_into(bytes(packed), bytearray(EXPANDED_BYTES)))


def _measure_zstd(packed: memoryview | bytes) -> int:
    return int(cramjam.zstd.decompress_into(bytes(packed), bytearray(EXPANDED_BYTES)))


_MEASURES: dict[int, Callable[[memoryview | bytes], int]] = {
    _GZIP: _measure_gzip,
    _SNAPPY: _measure_snappy,
    _LZ4: _measure_lz4,
    _ZSTD: _measure_zstd,
}


def _batches(fetched: bytes) -> Iterator[memoryview]:
    """The whole batches of a fetch; the last one may have been cut off."""
    view, at = memoryview(fetched), 0
    while at + _HEAD <= len(view):
        (length,) = struct.unpack_from(">i", view, at + _LENGTH_AT)
        end = at + _HEAD + length
        if end > len(view):
            return
        yield view[at:end]
        at = end


def _codec(raw: memoryview) -> int:
    """0: not compressed."""
    return raw[_ATTRIBUTES_AT + 1] & _CODEC_MASK
