"""Whole numbers of a page in as few bytes as they need: distances from the least of them.

    bytes 0 to 8     the least number, int64
    bytes 8 to 12    how many numbers there are, uint32
    byte 12          bytes of each distance, 0 to 8
    byte 13          1 if a number is taken less its own place: of numbers that follow one another
                     nothing is left
    from byte 14 on  the distances; all little-endian

Numbers that are all the same take 14 bytes together.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

_HEAD = struct.Struct("<qIBB")


def pack_numbers(numbers: NDArray[np.integer]) -> bytes:
    """Whole numbers of any shape; which shape and type they have is not told."""
    flat = numbers.reshape(-1).astype(np.int64)
    steps = 0
    least, width = _spread(flat)
    if width:
        rest = flat - np.arange(flat.size)
        least_of_rest, width_of_rest = _spread(rest)
        if width_of_rest < width:
            flat, least, width, steps = rest, least_of_rest, width_of_rest, 1
    # Between int64 numbers, too, a distance fits in 64 bits without a sign.
    distances = (flat - np.int64(least)).astype("<i8", copy=False).view(np.uint8)
    return _HEAD.pack(least, flat.size, width, steps) + (
        distances.reshape(-1, 8)[:, :width].tobytes()
    )


def unpack_numbers(packed: bytes) -> NDArray[np.int64]:
    """The numbers that were packed, in one row.

    Raises:
        ValueError: it is nothing that was packed so.
    """
    if len(packed) < _HEAD.size:
        raise ValueError(f"{len(packed)} bytes are no packed numbers")
    least, count, width, steps = _HEAD.unpack_from(packed)
    if width > 8 or steps > 1 or len(packed) != _HEAD.size + count * width:
        raise ValueError(f"{len(packed)} bytes are not {count} packed numbers of {width} bytes")
    octets = np.zeros((count, 8), dtype=np.uint8)
    octets[:, :width] = np.frombuffer(packed, dtype=np.uint8, offset=_HEAD.size).reshape(
        count, width
    )
    numbers = octets.view("<i8").reshape(-1).astype(np.int64, copy=False)
    numbers += least
    if steps:
        numbers += np.arange(count)
    return numbers


def _spread(numbers: NDArray[np.int64]) -> tuple[int, int]:
    """The least number, and how many bytes the largest distance from it takes."""
    if not numbers.size:
        return 0, 0
    least, largest = int(numbers.min()), int(numbers.max())
    return least, -(-(largest - least).bit_length() // 8)
