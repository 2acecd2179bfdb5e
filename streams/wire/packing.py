"""Between arrays and the bytes of the wire: users, norms, bit sets, and the digest of a charge."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from streams.schemas import (
    OLDEST,
    VERSION,
    Charge,
    Norms,
    Reason,
    Rejection,
    User,
    Users,
    encode,
    uneven,
)


def unpack_users(users: Users) -> NDArray[np.int64] | list[User]:
    """Packed ids, or a list of nothing but integers, as int64 (n,); any other list as it is.

    Raises:
        Rejection: MALFORMED, when packed ids are not a multiple of 8 bytes.
    """
    if isinstance(users, bytes):
        return _unpack(users, "<i8", "users").astype(np.int64, copy=False)
    if all(type(user) is int for user in users):
        return np.array(users, dtype=np.int64)
    return list(users)


def unpack_norms(norms: Norms) -> NDArray[np.float64]:
    """Norms as float64 (n,).

    Raises:
        Rejection: MALFORMED, when packed norms are not a multiple of 8 bytes.
    """
    if isinstance(norms, bytes):
        return _unpack(norms, "<f8", "norms").astype(np.float64, copy=False)
    return np.array(norms, dtype=np.float64)


def _unpack(packed: bytes, dtype: str, field: str) -> NDArray[np.generic]:
    return np.frombuffer(_even(packed, field), dtype=dtype)


def _even(packed: bytes, field: str) -> bytes:
    if len(packed) % 8:
        raise Rejection(Reason.MALFORMED, uneven(field, packed))
    return packed


def pack_users(users: NDArray[np.int64] | list[User]) -> Users:
    """The inverse of ``unpack_users``."""
    return users if isinstance(users, list) else users.astype("<i8", copy=False).tobytes()


def pack_norms(norms: NDArray[np.float64]) -> bytes:
    """The inverse of ``unpack_norms``."""
    return norms.astype("<f8", copy=False).tobytes()


def select_users(
    users: NDArray[np.int64] | Sequence[User], positions: NDArray[np.int64]
) -> NDArray[np.int64] | list[User]:
    """The users at these positions: an array of an array, else a list."""
    if isinstance(users, np.ndarray):
        return users[positions]
    return [users[position] for position in positions.tolist()]


def pack_bits(bits: NDArray[np.bool_]) -> bytes:
    """A bool array as a bit set, least significant bit first."""
    return np.packbits(bits, bitorder="little").tobytes()


def unpack_bits(packed: bytes, count: int) -> NDArray[np.bool_]:
    """The inverse of ``pack_bits``."""
    octets = np.frombuffer(packed, dtype=np.uint8)
    return np.unpackbits(octets, count=count, bitorder="little").astype(np.bool_)


def charge_digest(charge: Charge, version: int | None = None) -> bytes:
    """What makes a step the same step: all its content but the attempt, however it is encoded.

    Args:
        charge: one step of one run in one partition.
        version: by which rule; the charge's own if it is not given.

    Raises:
        Rejection: MALFORMED, when packed users or norms are not a multiple of 8 bytes.
    """
    digest = hashlib.sha256() if (version or charge.v) >= 2 else hashlib.blake2b(digest_size=16)
    for part in _content(charge):
        digest.update(part)
    return digest.digest()[:16]


def other_digests(charge: Charge) -> list[bytes]:
    """The digests of the same content by the rules of the other versions."""
    return [charge_digest(charge, v) for v in range(OLDEST, VERSION + 1) if v != charge.v]


def _content(charge: Charge) -> Iterator[bytes]:
    users, norms = charge.users, charge.norms
    users = _even(users, "users") if isinstance(users, bytes) else pack_users(unpack_users(users))
    packed = isinstance(users, bytes)
    content = users if isinstance(users, bytes) else encode(users)
    yield encode(
        (
            (charge.dataset, charge.run, charge.step, charge.mechanism),
            (float(charge.scale), _optional(charge.clip_norm)),
            (packed, len(content)),
        )
    )
    yield content
    yield _even(norms, "norms") if isinstance(norms, bytes) else pack_norms(unpack_norms(norms))


def _optional(number: float | None) -> float | None:
    return None if number is None else float(number)
