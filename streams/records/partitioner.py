"""Which partition a user lives in: what Kafka's own default partitioner gives for the user's key.

murmur2 of the key bytes, made positive, modulo P. The key of a string id is its UTF-8 form, that
of an integer id 8 bytes big-endian, so any Kafka client in any language finds the same partition.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streams.records import User

_SEED = np.uint32(0x9747B28C)
_MULTIPLIER = np.uint32(0x5BD1E995)
_POSITIVE = np.uint32(0x7FFFFFFF)
_BLOCK_BYTES = 2**20


def user_key(user: User) -> bytes:
    """The Kafka key of a user.

    Raises:
        OverflowError: an integer outside the signed 64-bit range.
    """
    return user.encode() if isinstance(user, str) else int(user).to_bytes(8, "big", signed=True)


def partitions_of(users: NDArray[np.int64] | list[User], partitions: int) -> NDArray[np.int64]:
    """The partition of each user, shape (n,).

    Args:
        users: int64 ids of shape (n,), or a list of integer and string ids.
        partitions: P, the number of partitions of the topic.
    """
    if isinstance(users, np.ndarray):
        octets = users.astype(">i8").view(np.uint8).reshape(-1, 8)
        hashes = _murmur2(octets, np.full(len(users), 8, dtype=np.uint32))
    else:
        hashes = _murmur2_of([user_key(user) for user in users])
    return (hashes & _POSITIVE).astype(np.int64) % partitions


def _murmur2_of(keys: list[bytes]) -> NDArray[np.uint32]:
    """murmur2 of keys of any lengths, in blocks of similar ones.

    A key among much longer ones would be filled up to their length: from the longest down, a block
    is as wide as its first key and no larger than ``_BLOCK_BYTES``.
    """
    lengths = np.fromiter(map(len, keys), dtype=np.uint32, count=len(keys))
    order = np.argsort(lengths, kind="stable")[::-1]
    hashes = np.empty(len(keys), dtype=np.uint32)
    start = 0
    while start < len(keys):
        width = -(-int(lengths[order[start]]) // 4) * 4
        block = order[start : start + max(1, _BLOCK_BYTES // max(1, width))]
        rows = b"".join([keys[position].ljust(width, b"\0") for position in block.tolist()])
        octets = np.frombuffer(rows, dtype=np.uint8).reshape(len(block), width)
        hashes[block] = _murmur2(octets, lengths[block])
        start += len(block)
    return hashes


def _murmur2(octets: NDArray[np.uint8], lengths: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """murmur2 of every row at once; uint32 arithmetic wraps, which is what murmur2 wants."""
    words = np.ascontiguousarray(octets).view("<u4")
    state = _SEED ^ lengths
    for column in range(words.shape[1]):
        word = words[:, column].astype(np.uint32)
        mixed = word * _MULTIPLIER
        mixed = (mixed ^ (mixed >> np.uint32(24))) * _MULTIPLIER
        whole = (state * _MULTIPLIER) ^ mixed
        tail = (state ^ word) * _MULTIPLIER  # the last one to three bytes, zeros behind them
        remaining = lengths - np.minimum(lengths, np.uint32(4 * column))
        state = np.where(remaining >= 4, whole, np.where(remaining > 0, tail, state))
    state = (state ^ (state >> np.uint32(13))) * _MULTIPLIER
    return state ^ (state >> np.uint32(15))
