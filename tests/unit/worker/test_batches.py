"""Batches as a consumer of the worker reads them: with their leader epochs, whatever they are."""

import struct

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_UNCOMMITTED
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from streams.worker.kafka.batches import UNKNOWN_EPOCH, EpochRecords, records_of

GZIP = 1


def batch(first, leader_epoch, *values, codec=0):
    """A batch as the log has it: the broker sets the offset and the leader epoch."""
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for number, value in enumerate(values):
        builder.append(number, 1_700_000_000_000, None, value, [])
    packed = bytearray(builder.build())
    struct.pack_into(">q", packed, 0, first)
    struct.pack_into(">i", packed, 12, leader_epoch)
    return bytes(packed)


def read(fetched):
    """Offset, value and leader epoch of what a consumer makes of a fetch."""
    place = TopicPartition("norms", 0)
    found = EpochRecords(place, records_of(fetched), [], 0, None, None, False, READ_UNCOMMITTED)
    return [(record.offset, record.value, record.checksum) for record in found]


@pytest.mark.parametrize("codec", [0, GZIP])
def test_every_record_has_the_leader_epoch_of_its_batch(codec):
    fetched = batch(0, 4, b"a", b"b", codec=codec) + batch(2, 6, b"c") + batch(3, 7, b"d")
    assert read(fetched) == [(0, b"a", 4), (1, b"b", 4), (2, b"c", 6), (3, b"d", 7)]


def test_a_batch_that_is_not_read_has_it_too():
    packed = bytearray(batch(5, 4, b"a" * 1000, b"b", codec=GZIP))
    packed[70:] = bytes(len(packed) - 70)  # it cannot be expanded
    ((offset, value, leader_epoch),) = read(bytes(packed) + batch(7, 6))[:1]
    assert (offset, value[:1], leader_epoch) == (5, b"\0", 4)


def test_formats_that_know_no_leader_epochs_do_without():
    builder = LegacyRecordBatchBuilder(1, 0, 1 << 20)
    builder.append(0, timestamp=1_700_000_000_000, key=None, value=b"a")
    assert read(bytes(builder.build())) == [(0, b"a", UNKNOWN_EPOCH)]


def test_a_batch_that_is_cut_off_is_not_read_and_one_that_is_too_short_is_an_error():
    fetched = batch(0, 4, b"a") + batch(1, 4, b"b")
    assert read(fetched[:-1]) == [(0, b"a", 4)]
    with pytest.raises(CorruptRecordException):
        read(struct.pack(">qiib", 0, 30, 0, 2) + bytes(25))
