"""Packed numbers come back as they were, in no more bytes than they need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from streams.ledger.columns import pack_numbers, unpack_numbers
from tests.audit.stored import unpacked

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(arrays(np.int64, array_shapes(min_dims=1, max_dims=2, min_side=0), elements=INT64))
def test_numbers_of_any_size_come_back(numbers: np.ndarray):
    assert unpack_numbers(pack_numbers(numbers)).tolist() == numbers.reshape(-1).tolist()


@given(st.lists(st.integers(0, 2**62), max_size=40))
def test_the_auditor_reads_the_same(numbers: list[int]):
    assert unpacked(pack_numbers(np.array(numbers, dtype=np.int64))) == numbers


@pytest.mark.parametrize(
    ("numbers", "octets"),
    [
        (np.zeros(0, dtype=np.int64), 0),
        (np.full(4096, 2**61), 0),
        (np.arange(7, 4103), 0),
        (np.arange(4096, dtype=np.uint32)[::-1], 2 * 4096),
        (np.arange(4096) % 256, 4096),
        ((np.arange(4096) % 256).astype(np.uint8), 4096),
        (np.arange(4096) % 2 * 2**40 + 2**61, 6 * 4096),
        (np.array([-(2**63), 2**63 - 1]), 2 * 8),
    ],
    ids=["none", "same", "in a row", "falling", "a byte", "bytes", "six bytes", "all of int64"],
)
def test_a_number_takes_as_many_bytes_as_the_largest_distance(numbers: np.ndarray, octets: int):
    packed = pack_numbers(numbers)
    assert len(packed) == 14 + octets
    assert unpack_numbers(packed).tolist() == numbers.tolist()


@pytest.mark.parametrize("change", [lambda p: p[:-1], lambda p: p + b"x", lambda p: p[:9]])
def test_bytes_that_were_not_packed_are_refused(change):
    with pytest.raises(ValueError):
        unpack_numbers(change(pack_numbers(np.arange(100)[::-1])))
