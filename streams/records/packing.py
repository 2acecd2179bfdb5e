"""Packed arrays of records: norms, bit sets and positions. `UserIds` packs users."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams.records.fields import Norms

NO_PACKED: Final = b"\0"
"""No position, packed."""


def unpack_norms(norms: Norms) -> NDArray[np.float64]:
    """Return norms as float64 (n,)."""
    if isinstance(norms, bytes):
        return np.frombuffer(norms, dtype="<f8").astype(np.float64, copy=False)
    return np.array(norms, dtype=np.float64)


def pack_norms(norms: NDArray[np.float64]) -> bytes:
    """Pack norms as little-endian float64."""
    return norms.astype("<f8", copy=False).tobytes()


def pack_bits(bits: NDArray[np.bool_]) -> bytes:
    """Return a bool array as a bit set, least significant bit first."""
    return np.packbits(bits, bitorder="little").tobytes()


def unpack_bits(packed: bytes, count: int) -> NDArray[np.bool_]:
    """Return the first bits of a bit set as a bool array (count,)."""
    octets = np.frombuffer(packed, dtype=np.uint8)
    return np.unpackbits(octets, count=count, bitorder="little").astype(np.bool_)


def pack_positions(positions: NDArray[np.integer], count: int) -> bytes:
    """Pack increasing positions among ``count`` members as numbers or bits, the shorter form."""
    if not len(positions):
        return NO_PACKED
    if 4 * len(positions) <= count // 8:
        return b"\0" + positions.astype("<u4").tobytes()
    bits = np.zeros(count, dtype=np.bool_)
    bits[positions] = True
    return b"\1" + pack_bits(bits)


def unpack_positions(packed: bytes, count: int) -> NDArray[np.int64]:
    """Return packed positions, int64 and increasing, or raise ``ValueError``."""
    if packed == NO_PACKED:
        return np.empty(0, dtype=np.int64)
    content = packed[1:]
    if packed[:1] == b"\0":
        positions = np.frombuffer(content, dtype="<u4").astype(np.int64)
        if len(positions) and (positions[-1] >= count or bool((np.diff(positions) <= 0).any())):
            raise ValueError(f"positions are not increasing, or not below {count}")
        return positions
    if packed[:1] != b"\1" or len(content) != -(-count // 8):
        raise ValueError(f"neither positions nor bits of {count} members")
    return np.flatnonzero(unpack_bits(content, count))
