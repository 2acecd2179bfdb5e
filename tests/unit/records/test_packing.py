"""Packed arrays, and the digest that identifies a charge."""

from __future__ import annotations

import struct
from math import nextafter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.records import (
    Charge,
    decode_request,
)
from streams.records.digests import charge_digest
from streams.records.packing import (
    pack_bits,
    pack_norms,
    unpack_bits,
    unpack_norms,
)
from tests.unit.records.records import CHARGE, ENCODINGS, PACKED_NORMS, PACKED_USERS, as_msgpack

# --- packed arrays and bit sets -----------------------------------------------------------------


@given(st.lists(st.floats()))
def test_norms_survive_packing(norms: list[float]) -> None:
    packed = pack_norms(unpack_norms(norms))
    assert packed == struct.pack(f"<{len(norms)}d", *norms)
    assert np.array_equal(unpack_norms(packed), unpack_norms(norms), equal_nan=True)


def test_norms_are_packed_little_endian() -> None:
    assert pack_norms(np.array([0.5, 1.0], dtype=">f8")) == PACKED_NORMS
    assert pack_norms(np.array([0.5, 9.0, 1.0, 9.0])[::2]) == PACKED_NORMS


@given(st.lists(st.booleans(), max_size=70))
def test_bit_sets_survive_packing(bits: list[bool]) -> None:
    packed = pack_bits(np.array(bits, dtype=np.bool_))
    assert len(packed) == -(-len(bits) // 8)
    unpacked = unpack_bits(packed, len(bits))
    assert unpacked.dtype == np.bool_
    assert unpacked.tolist() == bits


def test_bit_sets_begin_with_the_least_significant_bit() -> None:
    bits = np.zeros(10, dtype=np.bool_)
    bits[[0, 2, 9]] = True
    assert pack_bits(bits) == bytes([0b101, 0b10])


# --- digest -------------------------------------------------------------------------------------


def charge_of(**changes: Any) -> Charge:
    request = decode_request(as_msgpack({**CHARGE, **changes}))
    assert isinstance(request, Charge)
    return request


def digest_of(**changes: Any) -> bytes:
    return charge_digest(charge_of(**changes))


def test_the_digest_of_a_charge_is_fixed() -> None:
    digest = "4b07990cf51ba8e8d2ba7aa8909c8228"
    assert digest_of().hex() == digest
    assert digest_of(users=PACKED_USERS, norms=PACKED_NORMS).hex() == digest


@ENCODINGS
@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, {"users": PACKED_USERS}),
        ({}, {"norms": PACKED_NORMS}),
        ({}, {"users": PACKED_USERS, "norms": PACKED_NORMS}),
        ({}, {"mechanism": "gaussian", "scale": 1, "clip_norm": None}),
        ({}, {"users": PACKED_USERS, "mechanism": "gaussian", "scale": 1}),
        ({}, {"attempt": 2}),
        ({"users": [], "norms": []}, {"users": b"", "norms": b""}),
        ({"norms": [0, 1]}, {"norms": [0.0, 1.0]}),
        ({"clip_norm": 1.0}, {"clip_norm": 1}),
    ],
)
def test_digest_does_not_depend_on_the_encoding_or_the_attempt(
    encoded: Any, changes: dict[str, Any], same: dict[str, Any]
) -> None:
    request = decode_request(encoded({**CHARGE, **changes, **same}))
    assert isinstance(request, Charge)
    assert charge_digest(request) == digest_of(**changes)


def test_digest_depends_on_all_content() -> None:
    contents: list[dict[str, Any]] = [
        {},
        {"dataset": "e"},
        {"run": "s"},
        {"dataset": "dr", "run": "x"},
        {"dataset": "d", "run": "rx"},
        {"step": 1},
        {"users": [2, 1]},
        {"users": [1, 3]},
        {"users": [1, -2]},
        {"users": ["1", "2"]},
        {"users": [1, "2"]},
        {"users": ["12"]},
        {"users": [1, 2, 3], "norms": [0.5, 1.0, 0.0]},
        {"users": [1], "norms": [0.5]},
        {"users": [], "norms": []},
        {"norms": [1.0, 0.5]},
        {"norms": [0.5, nextafter(1.0, 2.0)]},
        {"mechanism": "laplace"},
        {"mechanism": "pure-dp"},
        {"scale": 2.0},
        {"scale": nextafter(1.0, 2.0)},
        {"clip_norm": 1.0},
        {"clip_norm": 0.0},
        {"reserve": 0.1},
        {"reserve": 0.2},
    ]
    assert len({digest_of(**content) for content in contents}) == len(contents)


@pytest.mark.parametrize(
    "changes",
    [
        # The same bytes, divided between users and norms in another way.
        {"users": PACKED_USERS + PACKED_NORMS[:8], "norms": PACKED_NORMS[8:]},
        {"users": PACKED_USERS[:8], "norms": PACKED_USERS[8:] + PACKED_NORMS},
        {"users": b"", "norms": PACKED_USERS + PACKED_NORMS},
    ],
)
def test_digest_separates_users_and_norms(changes: dict[str, Any]) -> None:
    assert digest_of(**changes) != digest_of()
