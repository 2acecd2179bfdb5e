"""What a record batch holds, against batches made by hand."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from streams.kafka.batches import (
    EVENT_BYTES,
    EXPANDED_BYTES,
    MAX_HEADERS,
    CorruptBatch,
    EventBatch,
    FetchedRecord,
    Gap,
    RecordBatch,
    batches_of,
    records_from,
)
from tests.batches import CODECS, CONTROL, GZIP, Case, batch, bomb, cases, packed, record

CASES = cases()
ATTRIBUTES = 21
VALUES = st.none() | st.binary(max_size=40)
RECORDS = st.lists(
    st.tuples(VALUES, VALUES, st.lists(st.tuples(st.text(max_size=5), VALUES), max_size=3)),
    min_size=1,
    max_size=20,
)


def read(raw: bytes) -> RecordBatch:
    (found,) = batches_of(raw)
    return found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_batch_holds_what_it_should_wherever_it_is_in_the_log(case: Case) -> None:
    raw = bytearray(case.raw)
    struct.pack_into(">q", raw, 0, 7)
    struct.pack_into(">i", raw, 12, 4)
    found = read(bytes(raw))
    records = list(found)
    (last_delta,) = struct.unpack_from(">i", raw, 23)
    assert (found.base_offset, found.next_offset) == (7, 8 + last_delta)
    assert {record.leader_epoch for record in records} == {4}
    assert found.is_readable is (case.values is not None)
    if case.values is None:
        ((offset, value),) = [(record.offset, record.value) for record in records]
        assert (offset, value) == (7, b"\0" + case.raw[ATTRIBUTES:])
    else:
        assert {record.offset - 7: record.value for record in records} == case.values


@given(RECORDS, st.sampled_from(list(CODECS)))
def test_ordinary_batches_are_read_as_by_the_client(records, codec) -> None:
    raw = packed(
        codec,
        [
            record(delta, value, key, [(name.encode(), v) for name, v in headers], delta)
            for delta, (key, value, headers) in enumerate(records)
        ],
        base_offset=100,
    )
    theirs = [
        FetchedRecord(r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers, 0)
        for r in DefaultRecordBatch(raw)
    ]
    assert list(read(raw)) == theirs


@given(RECORDS, st.sampled_from(list(CODECS)), st.data())
def test_changed_batch_is_read_whole_or_as_one_record(records, codec, data) -> None:
    content = b"".join(record(d, value, key) for d, (key, value, _) in enumerate(records))
    number, pack = CODECS[codec]
    body = bytearray(pack(content))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(1, len(body))) :]
    found = read(batch(bytes(body), len(records), codec=number))
    offsets = [r.offset for r in found]
    assert found.next_offset == len(records)
    if found.is_readable:
        assert len(offsets) == len(records)
        assert offsets == sorted(set(offsets))
        assert set(offsets) <= set(range(len(records)))
    else:
        assert offsets == [0]


def test_a_broker_that_sets_times_sets_them_for_every_record() -> None:
    content = record(0, b"a", timestamp_delta=5) + record(1, b"b", timestamp_delta=9)
    by_producer, by_broker = (batch(content, 2, attributes=a, time_ms=10**12) for a in (0, 0x08))
    of_producer, of_broker = read(by_producer), read(by_broker)
    (first, *_), times = of_producer, [r.timestamp for r in of_broker]
    assert [r.timestamp - first.timestamp for r in of_producer] == [0, 4]
    assert times[0] == times[1] == first.timestamp - 5
    assert {r.timestamp_type for r in of_broker} == {1}


def test_a_control_batch_holds_no_record() -> None:
    raw = batch(record(0, bytes(6), key=bytes(4)), 1, attributes=CONTROL, base_offset=3)
    found = read(raw)
    assert (found.is_control_batch, found.next_offset, list(found)) == (True, 4, [])


def test_a_batch_that_is_cut_off_is_left_to_the_next_fetch() -> None:
    first, second = batch(record(0, b"a"), 1), batch(record(0, b"b"), 1, base_offset=1)
    assert len(list(batches_of(first + second))) == 2
    for end in (1, 11, 40, len(second) - 1):
        assert [b.base_offset for b in batches_of(first + second[:end])] == [0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: struct.pack_into(">i", raw, 8, 20),  # too short for a header
        lambda raw: struct.pack_into(">i", raw, 8, -1),
        lambda raw: struct.pack_into(">b", raw, 16, 1),  # another format
        lambda raw: struct.pack_into(">I", raw, 17, 0),  # another checksum
        lambda raw: raw.__setitem__(-1, raw[-1] ^ 1),
    ],
)
def test_batch_damaged_on_its_way_is_an_error(damage) -> None:
    raw = bytearray(packed("gzip", [record(0, b"a" * 100)]))
    damage(raw)
    with pytest.raises(CorruptBatch):
        list(batches_of(bytes(raw)))


def offsets_from(raw: bytes, first: int, end: int, **settings: bool) -> list[int]:
    return [r.offset for r in records_from(read(raw), first, end, **settings)]


def test_reading_may_begin_and_end_within_a_batch() -> None:
    records = [record(delta, b"%d" % delta) for delta in range(5)]
    for codec in CODECS:
        raw = packed(codec, records, base_offset=10)
        assert offsets_from(raw, 10, 15) == [10, 11, 12, 13, 14]
        assert offsets_from(raw, 12, 14) == [12, 13]
        assert offsets_from(raw, 12, 99) == [12, 13, 14]
    unreadable = batch(b"junk", 5, codec=GZIP, base_offset=10)
    assert offsets_from(unreadable, 10, 15) == [10]
    assert offsets_from(unreadable, 12, 15) == []
    marker = batch(record(0, bytes(6), key=bytes(4)), 1, attributes=CONTROL, base_offset=10)
    assert offsets_from(marker, 10, 11) == []


@pytest.mark.parametrize(
    ("deltas", "first", "missing"),
    [([0, 1, 2], 9, 9), ([1, 2], 10, 10), ([0, 2], 10, 11), ([0, 1], 10, 12), ([], 10, 10)],
    ids=["before the batch", "its first", "one within", "its last", "all"],
)
def test_a_missing_offset_is_a_gap_unless_there_may_be_some(deltas, first, missing) -> None:
    content = b"".join(record(delta, b"x") for delta in deltas)
    raw = batch(content, len(deltas), last_delta=2, base_offset=10)
    with pytest.raises(Gap) as gap:
        offsets_from(raw, first, 13)
    assert gap.value.offset == missing
    assert offsets_from(raw, first, 13, may_have_gaps=True) == [10 + delta for delta in deltas]


def test_a_batch_that_expands_without_end_takes_little_memory() -> None:

    raw = bomb(64 * 2**20)
    tracemalloc.start()
    try:
        assert not read(raw).is_readable
        assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
    finally:
        tracemalloc.stop()


def events(raw: bytes) -> dict[int, bytes | None]:
    return {event.offset: event.value for event in EventBatch(memoryview(raw))}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("length", [EVENT_BYTES, 2**20, EXPANDED_BYTES + 2**20])
def test_a_long_event_leaves_those_of_other_users_in_their_batch(codec: str, length: int) -> None:
    values: dict[int, bytes | None] = {delta: b'{"user": %d}' % delta for delta in range(21)}
    values[7] = bytes(length)
    raw = packed(codec, [record(delta, value) for delta, value in values.items()])
    assert events(raw) == {**values, 7: b"\0"}


@pytest.mark.parametrize("codec", CODECS)
def test_event_counts_up_to_its_limit_in_any_batch(codec: str) -> None:
    overhead = len(record(1, bytes(EVENT_BYTES), b"key")) - EVENT_BYTES
    value = bytes(EVENT_BYTES - overhead + 3)  # the length of the record counts what follows it
    for others in (0, EVENT_BYTES, EXPANDED_BYTES):
        raw = packed(codec, [record(0, bytes(others)), record(1, value, b"key")])
        assert events(raw)[1] == value
        longer = packed(codec, [record(0, bytes(others)), record(1, value + b"x", b"key")])
        assert events(longer)[1] == b"\0"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_events_are_those_of_the_batch_or_a_beginning_of_them(case: Case) -> None:
    found = events(case.raw)
    (last_delta,) = struct.unpack_from(">i", case.raw, 23)
    assert list(found) == sorted(found)
    assert set(found) <= set(range(last_delta + 1))
    if case.values is not None:
        short = {d: v for d, v in case.values.items() if v is None or len(v) < EVENT_BYTES}
        assert found == {**dict.fromkeys(case.values, b"\0"), **short}
    else:
        assert set(found.values()) <= {b"\0", b"one " * 20, b"two " * 20}


@pytest.mark.parametrize("codec", CODECS)
def test_a_malformed_event_leaves_the_others(codec: str) -> None:
    many = [(b"", None)] * (MAX_HEADERS + 1)
    raw = packed(codec, [record(0, b"a"), record(1, b"b", headers=many), record(2, b"c")])
    assert events(raw) == {0: b"a", 1: b"\0", 2: b"c"}


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["gzip", "snappy in blocks", "lz4", "zstd"])
def test_an_event_beside_a_very_long_one_takes_little_memory(codec: str, monkeypatch) -> None:
    monkeypatch.setattr("streams.kafka.batches.STREAMED_BYTES", 56 * 2**20)
    raw = packed(codec, [record(0, b"a"), record(1, bytes(64 * 2**20)), record(2, b"c")])
    tracemalloc.start()
    try:
        found = events(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == {0: b"a", 1: b"\0"}
    assert peak < 40 * 2**20
