"""Record batches made by hand: ordinary ones, and those that two clients would read in two ways."""

from __future__ import annotations

import gzip
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import cramjam
from crc32c import crc32c

from streams.kafka.batches import EXPANDED_BYTES, MAX_HEADERS

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CONTROL = 0x20
_XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_BLOCK = 32 * 1024

Headers = Sequence[tuple[bytes, bytes | None]]


def varint(number: int) -> bytes:
    """As Kafka writes it: zigzag, seven bits a byte."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def field(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def record(
    offset_delta: int,
    value: bytes | None,
    key: bytes | None = None,
    headers: Headers = (),
    timestamp_delta: int = 0,
) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + field(key) + field(value)
    body += varint(len(headers)) + b"".join(field(name) + field(v) for name, v in headers)
    return varint(len(body)) + body


def batch(
    content: bytes,
    count: int,
    *,
    codec: int = NONE,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = 0,
    last_delta: int | None = None,
    time_ms: int | None = None,
) -> bytes:
    """Return a batch around packed content, with its checksum; its time is now by default."""
    now = int(time.time() * 1000) if time_ms is None else time_ms
    last = count - 1 if last_delta is None else last_delta
    body = struct.pack(">hiqqqhii", attributes | codec, last, now, now, -1, -1, -1, count) + content
    rest = struct.pack(">ibI", leader_epoch, 2, crc32c(body)) + body
    return struct.pack(">qi", base_offset, len(rest)) + rest


def _xerial(content: bytes) -> bytes:
    blocks = (content[at : at + _BLOCK] for at in range(0, len(content), _BLOCK))
    packed = (bytes(cramjam.snappy.compress_raw(block)) for block in blocks)
    return _XERIAL + b"".join(struct.pack(">i", len(block)) + block for block in packed)


def _lz4(content: bytes, checksum: bool = False) -> bytes:
    """Frames of blocks that do not depend on each other: brokers take no others."""
    packer = cramjam.lz4.Compressor(level=1, content_checksum=checksum, block_linked=False)
    packer.compress(content)
    return bytes(packer.finish())


def _zstd(content: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(content))


class Codec(NamedTuple):
    """One of the ways in which clients compress a batch."""

    number: int
    pack: Callable[[bytes], bytes]


CODECS = {
    "uncompressed": Codec(NONE, bytes),
    "gzip": Codec(GZIP, gzip.compress),
    "snappy in blocks": Codec(SNAPPY, _xerial),
    "snappy in one": Codec(SNAPPY, lambda content: bytes(cramjam.snappy.compress_raw(content))),
    "lz4": Codec(LZ4, _lz4),
    "zstd": Codec(ZSTD, _zstd),
}


def packed(codec: str, records: Sequence[bytes], **settings: Any) -> bytes:
    """A batch of records."""
    number, pack = CODECS[codec]
    return batch(pack(b"".join(records)), len(records), codec=number, **settings)


def filled(records: Sequence[bytes], size: int) -> tuple[list[bytes], bytes]:
    """Records up to a size, by another one of zeros; and the value of that one."""
    left = size - sum(map(len, records))
    longest_frame = len(record(len(records), bytes(left))) - left
    for zeros in range(left - longest_frame, left):
        last = record(len(records), bytes(zeros))
        if len(last) == left:
            return [*records, last], bytes(zeros)
    raise AssertionError(f"no record has {left} bytes")


def bomb(size: int, *others: bytes) -> bytes:
    """A batch with a record of so many zeros and other values, in gzip.

    It is made in no more memory than it takes.
    """
    head = b"\0" + varint(0) + varint(0) + varint(-1) + varint(size)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    content = bytearray(packer.compress(varint(len(head) + size + 1) + head))
    chunk = bytes(2**20)
    for _ in range(size // len(chunk)):
        content += packer.compress(chunk)
    content += packer.compress(varint(0))
    for delta, value in enumerate(others, start=1):
        content += packer.compress(record(delta, value))
    content += packer.flush()
    return batch(bytes(content), 1 + len(others), codec=GZIP)


class Case(NamedTuple):
    """A batch, and what it holds.

    Attributes:
        raw: the batch.
        values: of its records, by their offsets within it; None if it is unreadable.
        is_stored: whether a broker takes it.
    """

    raw: bytes
    values: dict[int, bytes | None] | None
    is_stored: bool = True


def _cases(one: bytes, two: bytes) -> Iterator[tuple[str, Case]]:
    both = [record(0, one), record(1, two)]
    content, values = b"".join(both), {0: one, 1: two}
    for name in CODECS:
        yield name, Case(packed(name, both), values)
        if name != "uncompressed":
            large, zeros = filled(both, EXPANDED_BYTES)
            yield f"{name}, as large as it may be", Case(packed(name, large), {**values, 2: zeros})
            large, _ = filled(both, EXPANDED_BYTES + 1)
            yield f"{name}, too large", Case(packed(name, large), None)
    lz4 = CODECS["lz4"].pack(content)
    broken = bytearray(_lz4(content, checksum=True))
    broken[-1] ^= 1
    for name, codec, unreadable in (
        ("gzip and junk", GZIP, gzip.compress(content) + b"junk"),
        ("lz4 with a wrong checksum", LZ4, bytes(broken)),
        ("lz4 and junk", LZ4, lz4 + b"junk, junk, junk"),
        ("lz4 and another frame", LZ4, lz4 + lz4),
        ("snappy in two streams", SNAPPY, _xerial(content[:40]) + _xerial(content[40:])),
    ):
        yield name, Case(batch(unreadable, 2, codec=codec), None)
    for name, codec, readable in (
        ("gzip in two members", GZIP, gzip.compress(content[:40]) + gzip.compress(content[40:])),
        ("gzip and zeros", GZIP, gzip.compress(content) + bytes(3)),
        ("zstd in two frames", ZSTD, _zstd(content[:40]) + _zstd(content[40:])),
    ):
        yield name, Case(batch(readable, 2, codec=codec), values)
    for name, first, second in (
        ("the same offset twice", 0, 0),
        ("offsets in another order", 1, 0),
        ("an offset behind the batch", 0, 1000),
        ("an offset before the batch", 0, -1),
    ):
        yield name, Case(batch(record(first, one) + record(second, two), 2), None)
    names = [(b"\xff\xfe", b"x"), (b"", None)]
    yield (
        "names of headers that are no text",
        Case(batch(record(0, one, headers=names), 1), {0: one}),
    )
    many = [(b"", None)] * MAX_HEADERS
    yield "many headers", Case(batch(record(0, one, headers=many), 1), {0: one})
    yield "too many headers", Case(batch(record(0, one, headers=[*many, *names]), 1), None)
    yield "no value", Case(batch(record(0, None, key=b"k"), 1), {0: None})
    for name, raw in {
        "fewer records than it says": batch(content, 3),
        "more records than it says": batch(content, 1),
        "a negative number of records": batch(content, -1, last_delta=1),
        "a codec that nobody knows": batch(content, 2, codec=5),
        "gzip cut off": batch(gzip.compress(content)[:-9], 2, codec=GZIP),
        "zstd and junk": batch(_zstd(content) + b"junk, junk, junk", 2, codec=ZSTD),
        "blocks of a negative length": batch(
            _XERIAL + struct.pack(">i", -4) + bytes(20), 2, codec=SNAPPY
        ),
        "a block that claims gigabytes": batch(
            b"\xff\xff\xff\xff\x0f" + bytes(20), 2, codec=SNAPPY
        ),
        "nothing": batch(b"", 2, codec=GZIP),
        "a record longer than its batch": batch(varint(1000) + content, 2),
        "a number without an end": batch(b"\xff" * 40, 1),
    }.items():
        yield name, Case(raw, None, is_stored=False)


def cases(one: bytes = b"one " * 20, two: bytes = b"two " * 20) -> dict[str, Case]:
    """Every case, with these values in those that can be read."""
    return dict(_cases(one, two))
