"""A user's partition is where every Kafka client would put a record with the user's key.

``golden_partitions.json`` was computed once with the Java client; the file says how.
"""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from streams.records import User
from streams.records import users as users_module
from streams.records.users import partitions_of, user_key

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent / "golden_partitions.json").read_text(encoding="utf-8")
)
COUNTS: list[int] = GOLDEN["partition_counts"]
IDS: list[User] = [row["id"] for row in GOLDEN["rows"]]
INTEGERS = [user for user in IDS if isinstance(user, int)]
STRINGS = [user for user in IDS if isinstance(user, str)]

integers = st.integers(-(2**63), 2**63 - 1)
strings = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=256)
counts = st.integers(1, 100_000)


def golden(partitions: int, users: list[User]) -> list[int]:
    column = COUNTS.index(partitions)
    table = {(type(row["id"]), row["id"]): row["partitions"][column] for row in GOLDEN["rows"]}
    return [table[type(user), user] for user in users]


def by_kafka_python(user: User, partitions: int) -> int:
    return int(murmur2(user_key(user)) & 0x7FFFFFFF) % partitions


def test_golden_table_covers_the_edges() -> None:
    assert {0, 1, -1, 2**31, -(2**31), 2**63 - 1, -(2**63)} <= set(INTEGERS)
    lengths = {len(user.encode()) for user in STRINGS}
    assert set(range(1, 41)) <= lengths
    assert max(lengths) == 1024  # 256 characters of four bytes
    assert any(not user.isascii() for user in STRINGS)
    assert {row["murmur2"] < 0 for row in GOLDEN["rows"]} == {True, False}
    assert "org.apache.kafka:kafka-clients:4.3.0" in GOLDEN["computed_by"]


@pytest.mark.parametrize("partitions", COUNTS)
@pytest.mark.parametrize("users", [INTEGERS, STRINGS, IDS], ids=["integers", "strings", "mixed"])
def test_partitions_of_lists_agree_with_the_java_client(users: list[User], partitions: int) -> None:
    assert partitions_of(users, partitions).tolist() == golden(partitions, users)


def test_arrays_of_any_layout_are_understood() -> None:
    users = np.array(INTEGERS, dtype=np.int64)
    expected = golden(64, list(INTEGERS))
    assert partitions_of(np.repeat(users, 2)[::2], 64).tolist() == expected
    assert partitions_of(users[::-1], 64).tolist() == expected[::-1]
    assert partitions_of(users[:0], 64).dtype == partitions_of([], 64).dtype == np.int64
    assert partitions_of(users.astype(">i8"), 64).tolist() == expected


@pytest.mark.parametrize("user", [2**63, -(2**63) - 1])
def test_integer_beyond_64_bits_has_no_key(user: int) -> None:
    with pytest.raises(OverflowError):
        user_key(user)


@given(st.lists(integers | strings, min_size=1, max_size=60), st.integers(1, 400))
def test_blocks_of_any_size_agree_with_kafka_python(users: list[User], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(users_module, "_BLOCK_BYTES", block)
        homes = partitions_of(users, 100_000)
    assert homes.tolist() == [by_kafka_python(user, 100_000) for user in users]


def test_one_long_name_does_not_pad_all_others() -> None:
    """It made 500,000 of them take 1.27 GB."""
    short: list[User] = [f"u{i}" for i in range(50_000)]
    users = [*short, "\U0001f9ee" * 256]
    tracemalloc.start()
    try:
        homes = partitions_of(users, 64)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert homes[:-1].tolist() == partitions_of(short, 64).tolist()
    assert peak < 300 * len(users)  # 1,024 bytes each were more than 50 MB
