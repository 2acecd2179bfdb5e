"""Users, norms and contributions are taken by position, and nothing is coerced."""

from __future__ import annotations

import uuid
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from streams.queries.continual_monitoring import read_contributions
from streams.sdk.arguments import read_norms, read_users
from streams.sdk.errors import InvalidRequest


class Colour(IntEnum):
    RED = 3


class Text(StrEnum):
    A = "a"


class Unreadable:
    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        raise TypeError("no such type")


SHUFFLED = pd.DataFrame(
    {"user": [3, 1, 2], "name": ["c", "a", "b"], "norm": [0.3, 0.1, 0.2]}
).sort_values("user")
"""Labels 1, 2, 0: a reader that goes by label gets another order."""
FRAME = pd.DataFrame({"x": [1.0, 2.0], "y": [3, 4]}, index=[1, 0])

USERS: dict[str, tuple[list[Any], Any]] = {
    # the ids that are read, and what they are read from
    "list": ([1, 2, 3], [np.int32(1), 2, Colour.RED]),
    "big-endian": ([1, 2, 3], np.array([1, 2, 3], dtype=">i4")),
    "objects": ([1, 2, 3], np.array([1, 2, 3], dtype=object)),
    "pandas, sorted": ([1, 2, 3], SHUFFLED["user"]),
    "pandas Int64": ([1, 2, 3], pd.Series([1, 2, 3], dtype="Int64")),
    "polars UInt64": ([1, 2, 3], pl.Series([1, 2, 3], dtype=pl.UInt64)),
    "arrow chunks": ([1, 2, 3], pa.chunked_array([[1], [2, 3]])),
    "strings": (["a", "b\0", "ü"], [Text.A, np.str_("b\0"), "ü"]),
    "strings of any width": (["b\0", "ü"], np.array(["b\0", "ü"], dtype=np.dtypes.StringDType())),
    "pandas strings": (["a", "b", "c"], SHUFFLED["name"]),
    "pandas arrow strings": (["b\0", "ü"], pd.Series(["b\0", "ü"], dtype="string[pyarrow]")),
    "polars Categorical": (["b\0", "ü"], pl.Series(["b\0", "ü"], dtype=pl.Categorical)),
    "mixed": ([1, "1", -1], [1, "1", np.int8(-1)]),
    "none": ([], []),
}


@pytest.mark.parametrize(("expected", "users"), USERS.values(), ids=USERS)
def test_ids_keep_their_order_and_kinds(expected: list[Any], users: Any) -> None:
    ids = read_users(users)
    assert ids.tolist() == expected
    assert [type(user) for user in ids] == [type(user) for user in expected]
    assert ids.are_integers == all(isinstance(user, int) for user in expected)


NO_IDS: dict[str, Any] = {
    "float": [1, 2.0],
    "floats": np.array([1.0]),
    "bools": np.array([True]),
    "UUID": [uuid.UUID(int=1)],
    "None": ["a", None],
    "large": [2**63],
    "large, numpy": np.array([2**63], dtype=np.uint64),
    "small": ["a", -(2**63) - 1],
    "empty string": ["a", ""],
    "long string": ["x" * 257],
    "half a character": ["a", "\ud800"],
    "text": "abc",
    "set": {1, 2},
    "dict": {1: 0.5},
    "generator": (user for user in [1]),
    "two-dimensional": np.array([[1, 2]]),
    "a number": np.int64(5),
    "masked array without masked values": np.ma.array([1, 2]),
    "dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
    "pandas Int64 with NA": pd.Series([1, None], dtype="Int64"),
    "pandas str with NaN": pd.Series(["a", None]),
    "pandas MultiIndex": pd.MultiIndex.from_tuples([(1, 2)]),
    "pandas frame": SHUFFLED,
    "polars with null": pl.Series([1, None]),
    "values that numpy cannot hold": Unreadable(),
}


@pytest.mark.parametrize("users", NO_IDS.values(), ids=NO_IDS)
def test_invalid_id_is_rejected(users: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_users(users)


NUMBERS = {
    "list": [np.float64(0.1), 0.2, 0.3],
    "big-endian": np.array([0.1, 0.2, 0.3], dtype=">f8"),
    "pandas, sorted": SHUFFLED["norm"],
    "pandas Float64": pd.Series([0.1, 0.2, 0.3], dtype="Float64"),
    "polars": pl.Series([0.1, 0.2, 0.3]),
    "arrow": pa.array([0.1, 0.2, 0.3]),
}


@pytest.mark.parametrize("norms", NUMBERS.values(), ids=NUMBERS)
def test_norms_keep_their_order(norms: Any) -> None:
    values, _ = read_norms(norms, 3, None)
    assert values.dtype == np.float64
    assert values.tolist() == [0.1, 0.2, 0.3]
    assert read_contributions(norms, 3, None).tolist() == [0.1, 0.2, 0.3]


def test_integers_are_valid_norms() -> None:
    for norms in ([1, 2], [1, 2.0], np.array([1, 2]), pl.Series([1, 2])):
        assert read_norms(norms, 2, None)[0].tolist() == [1.0, 2.0]
    assert read_norms([], 0, None)[0].shape == (0,)


NO_NUMBERS: dict[str, Any] = {
    "text": [1.0, "2"],
    "numpy text": np.array(["1", "2"]),
    "bool": [1.0, True],
    "bools": np.array([True, False]),
    "complex": np.array([1j, 2]),
    "Decimal": [1.0, Decimal(1)],
    "polars Decimal": pl.Series([Decimal("1.5"), Decimal("2.5")]),
    "long double": np.array([1, 2], dtype=np.longdouble),
    "set": {1.0, 2.0},
    "a number": 1.0,
    "masked": np.ma.array([1.0, 2.0], mask=[False, True]),
}
NO_NORMS: dict[str, Any] = NO_NUMBERS | {
    "None": [1.0, None],
    "pandas NA": pd.Series([1.0, pd.NA], dtype=object),
    "large integers beside floats": [0.5, 2**53 + 1],
    "integers beyond 64 bits": [1, 2**70 + 1],
    "NaN": [1.0, np.nan],
    "infinite": [1.0, np.inf],
    "negative": [-1e-300, 1.0],
    "too few": [1.0],
    "vectors": [[1.0], [2.0]],
    "pandas frame": pd.DataFrame({"norm": [1.0, 2.0]}),
}


@pytest.mark.parametrize("norms", NO_NORMS.values(), ids=NO_NORMS)
def test_invalid_norm_is_rejected(norms: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_norms(norms, 2, None)


VECTORS = {
    "lists": [[1.0, 3], [2.0, 4]],
    "arrays": [np.array([1.0, 3.0]), np.array([2, 4])],
    "pandas rows": [pd.Series([1.0, 3.0], index=[1, 0]), pd.Series([2, 4])],
    "array": np.array([[1.0, 3.0], [2.0, 4.0]]),
    "pandas frame with one name for all": FRAME.set_axis(["x", "x"], axis=1),
    "pandas frame with names of methods": FRAME.set_axis(["get_columns", "items"], axis=1),
    "pandas frame of Int64": FRAME.astype("Int64"),
    "polars frame": pl.DataFrame({"x": [1.0, 2.0], "y": [3, 4]}),
    "polars Array": pl.Series([[1.0, 3.0], [2.0, 4.0]], dtype=pl.Array(pl.Float64, 2)),
}


@pytest.mark.parametrize("contributions", VECTORS.values(), ids=VECTORS)
def test_vectors_keep_their_order(contributions: Any) -> None:
    assert read_contributions(contributions, 2, 2).tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_a_missing_number_counts_as_zero() -> None:
    for frame in (
        pd.DataFrame({"x": pd.array([1, None], "Int64")}),
        pl.DataFrame({"x": [1, None]}),
    ):
        assert read_contributions(frame, 2, 1).tolist() == [[1.0], [0.0]]


NO_VECTORS: dict[str, Any] = NO_NUMBERS | {
    "a bool column": pd.DataFrame({"x": [1.0, 2.0], "y": [True, False]}),
    "a text column": pl.DataFrame({"x": ["1", "2"]}),
    "bools": [[1.0, True], [2.0, False]],
    "ragged": [[1.0], [2.0, 3.0]],
    "ragged arrays": [np.ones(1), np.ones(2)],
    "polars List": pl.Series([[1.0], [2.0, 3.0]]),
    "no columns": pd.DataFrame(index=[0, 1]),
    "an arrow table": pa.table({"x": [1.0, 2.0]}),
}


@pytest.mark.parametrize("contributions", NO_VECTORS.values(), ids=NO_VECTORS)
@pytest.mark.parametrize("dimension", [None, 1, 2])
def test_invalid_contribution_is_rejected(contributions: Any, dimension: int | None) -> None:
    with pytest.raises(InvalidRequest):
        read_contributions(contributions, 2, dimension)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("clip_norm", [0.1, 1.0, 1e-30])
def test_norms_clipped_in_float32_are_within_the_clip_norm(kind: Any, clip_norm: float) -> None:
    clipped = np.minimum(np.array([0.0, 5.0], dtype=kind), kind(clip_norm))
    norms, limit = read_norms(clipped, 2, clip_norm)
    assert norms.tolist() == clipped.astype(float).tolist()  # charged as they are given
    assert limit is not None
    assert clip_norm <= limit
    assert float(np.nextafter(kind(limit), kind(0))) < clip_norm  # the least of its type
    above = np.nextafter(kind(limit), kind(np.inf))
    with pytest.raises(InvalidRequest):
        read_norms(np.array([0.0, above], dtype=kind), 2, clip_norm)


def test_clip_norm_is_exact_for_float64_and_beyond_float32() -> None:
    with pytest.raises(InvalidRequest):
        read_norms([np.nextafter(0.1, 1)], 1, 0.1)
    assert read_norms([0.1], 1, 0.1)[1] == 0.1
    assert read_norms(np.ones(1, np.float32), 1, 1e300)[1] == 1e300
    for clip_norm in (-1.0, np.nan, np.inf, "1", True):
        with pytest.raises(InvalidRequest):
            read_norms([0.0], 1, clip_norm)
