"""Between arrays and the bytes of the wire: users, norms, bit sets, and the digest of a charge."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from streams.records import (
    Charge,
    ChargeRoster,
    Norms,
    User,
    Users,
    encode,
)
from streams.records.user_ids import UserIds

ROSTER_PAGE = 4096
"""Users of a roster that have one digest."""

PAGE_DIGEST_BYTES = 16


def unpack_users(users: Users) -> NDArray[np.int64] | list[User]:
    """Return packed ids, or a list of integers only, as int64 (n,); any other list as it is."""
    if isinstance(users, bytes):
        return np.frombuffer(users, dtype="<i8").astype(np.int64, copy=False)
    if all(type(user) is int for user in users):
        return np.array(users, dtype=np.int64)
    return list(users)


def unpack_norms(norms: Norms) -> NDArray[np.float64]:
    """Return norms as float64 (n,)."""
    if isinstance(norms, bytes):
        return np.frombuffer(norms, dtype="<f8").astype(np.float64, copy=False)
    return np.array(norms, dtype=np.float64)


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


def charge_digest(charge: Charge, names: Raw | None = None) -> bytes:
    """Return the digest that identifies a step: of its content without the attempt.

    It does not depend on how the charge is encoded.

    Args:
        charge: one step of one run in one partition.
        names: its users as they are encoded, if that is known, and not all of them are integers.
    """
    digest = hashlib.sha256()
    for part in _content(charge, names):
        digest.update(part)
    return digest.digest()[:16]


def _content(charge: Charge, names: Raw | None) -> Iterator[bytes]:
    norms = charge.norms
    packed, content = (False, bytes(names)) if names is not None else _users_of(charge)
    yield encode(
        (
            (charge.dataset, charge.run, charge.step, charge.mechanism),
            (float(charge.scale), _optional(charge.clip_norm)),
            (packed, len(content)),
        )
    )
    yield content
    yield norms if isinstance(norms, bytes) else pack_norms(unpack_norms(norms))


def _users_of(charge: Charge) -> tuple[bool, bytes]:
    """Whether all users of a charge are integers, which are packed then, and their bytes."""
    users = charge.users
    users = users if isinstance(users, bytes) else pack_users(unpack_users(users))
    return (True, users) if isinstance(users, bytes) else (False, encode(users))


def _optional(number: float | None) -> float | None:
    return None if number is None else float(number)


def roster_digest(charge: ChargeRoster) -> bytes:
    """What makes a step of a roster the same step: all its content but the attempt.

    The units of a cost table are in it by their own digest, whether the record brings them or not.
    """
    head = encode(
        (
            (charge.dataset, charge.run, charge.step, charge.members, charge.mechanism),
            (float(charge.scale), float(charge.sampling_rate), charge.cost_table_digest),
            (len(charge.positions), len(charge.levels)),
        )
    )
    digest = hashlib.sha256(b"charge-roster" + head)
    digest.update(charge.positions)
    digest.update(charge.levels)
    return digest.digest()[:16]


def cost_table_digest(units: bytes) -> bytes:
    """By what a step of a roster names its cost table."""
    return hashlib.sha256(b"cost-table" + units).digest()[:16]


def page_digests(users: UserIds) -> bytes:
    """By what a roster is recognised: 16 bytes for each page of its users, in their order."""
    pages = range(0, len(users), ROSTER_PAGE)
    return b"".join(_page_digest(users[start : start + ROSTER_PAGE]) for start in pages)


def _page_digest(users: UserIds) -> bytes:
    packed = users.pack()
    kind, content = (b"i", packed) if isinstance(packed, bytes) else (b"s", encode(packed))
    return hashlib.sha256(kind + content).digest()[:PAGE_DIGEST_BYTES]


def pack_positions(positions: NDArray[np.integer], count: int) -> bytes:
    """Positions, increasing, of so many members: as numbers or as bits, whichever is shorter."""
    if 4 * len(positions) <= count // 8:
        return b"\0" + positions.astype("<u4").tobytes()
    bits = np.zeros(count, dtype=np.bool_)
    bits[positions] = True
    return b"\1" + pack_bits(bits)


def unpack_positions(packed: bytes, count: int) -> NDArray[np.int64]:
    """The inverse of ``pack_positions``.

    Raises:
        ValueError: it is none.
    """
    content = packed[1:]
    if packed[:1] == b"\0":
        positions = np.frombuffer(content, dtype="<u4").astype(np.int64)
        if len(positions) and (positions[-1] >= count or bool((np.diff(positions) <= 0).any())):
            raise ValueError(f"positions are not increasing, or not below {count}")
        return positions
    if packed[:1] != b"\1" or len(content) != -(-count // 8):
        raise ValueError(f"neither positions nor bits of {count} members")
    return np.flatnonzero(unpack_bits(content, count))
