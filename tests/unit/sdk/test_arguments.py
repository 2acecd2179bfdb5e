"""Users, norms and contributions are taken by position, and nothing is coerced."""

from __future__ import annotations

import uuid
from collections.abc import Callable
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
"""Labels 1, 2, 0: whoever goes by label gets another order."""

INTEGERS = {
    "list": [1, 2, 3],
    "tuple": (1, 2, 3),
    "range": range(1, 4),
    "list of numpy integers": [np.int32(1), np.uint8(2), 3],
    "enumeration": [1, 2, Colour.RED],
    "int64": np.array([1, 2, 3]),
    "uint8": np.array([1, 2, 3], dtype=np.uint8),
    "big-endian": np.array([1, 2, 3], dtype=">i4"),
    "objects": np.array([1, 2, 3], dtype=object),
    "every second": np.array([1, 0, 2, 0, 3])[::2],
    "pandas": pd.Series([1, 2, 3], index=[2, 0, 1]),
    "pandas, sorted": SHUFFLED["user"],
    "pandas, labels that are names of methods": pd.Series(
        [1, 2, 3], index=["columns", "to_list", "get_columns"]
    ),
    "pandas objects": pd.Series([1, 2, 3], dtype=object),
    "pandas Int64": pd.Series([1, 2, 3], dtype="Int64"),
    "pandas UInt8": pd.Series([1, 2, 3], dtype="UInt8"),
    "pandas arrow": pd.Series([1, 2, 3], dtype="int64[pyarrow]"),
    "pandas category": pd.Series([1, 2, 3], dtype="category"),
    "pandas Categorical": pd.Categorical([1, 2, 3]),
    "pandas array": pd.array([1, 2, 3], dtype="Int64"),
    "pandas Index": pd.Index([1, 2, 3]),
    "pandas RangeIndex": pd.RangeIndex(1, 4),
    "polars": pl.Series([1, 2, 3]),
    "polars UInt64": pl.Series([1, 2, 3], dtype=pl.UInt64),
    "polars column": pl.DataFrame({"user": [1, 2, 3]})["user"],
    "arrow": pa.array([1, 2, 3]),
    "arrow chunks": pa.chunked_array([[1], [2, 3]]),
}


@pytest.mark.parametrize("users", INTEGERS.values(), ids=INTEGERS)
def test_integer_ids_keep_their_order(users: Any) -> None:
    ids = read_users(users)
    assert ids.are_integers
    assert ids.tolist() == [1, 2, 3]


STRINGS = {
    "list": ["a", "b\0", "ü"],
    "numpy strings": ["a", np.str_("b\0"), "ü"],
    "enumeration": [Text.A, "b\0", "ü"],
    "objects": np.array(["a", "b\0", "ü"], dtype=object),
    "variable width": np.array(["a", "b\0", "ü"], dtype=np.dtypes.StringDType()),
    "pandas": pd.Series(["a", "b\0", "ü"], index=[2, 0, 1]),
    "pandas objects": pd.Series(["a", "b\0", "ü"], dtype=object),
    "pandas string": pd.Series(["a", "b\0", "ü"], dtype="string[python]"),
    "pandas arrow": pd.Series(["a", "b\0", "ü"], dtype="string[pyarrow]"),
    "pandas category": pd.Series(["a", "b\0", "ü"], dtype="category"),
    "pandas Index": pd.Index(["a", "b\0", "ü"]),
    "polars": pl.Series(["a", "b\0", "ü"]),
    "polars Categorical": pl.Series(["a", "b\0", "ü"], dtype=pl.Categorical),
    "polars Enum": pl.Series(["a", "b\0", "ü"], dtype=pl.Enum(["ü", "a", "b\0"])),
    "arrow": pa.array(["a", "b\0", "ü"]),
}


@pytest.mark.parametrize("users", STRINGS.values(), ids=STRINGS)
def test_string_ids_keep_their_order(users: Any) -> None:
    ids = read_users(users)
    assert ids.tolist() == ["a", "b\0", "ü"]
    assert {type(user) for user in ids} == {str}


def test_mixed_ids_keep_their_kinds() -> None:
    assert read_users([1, "1", np.int8(-1)]).tolist() == [1, "1", -1]
    assert read_users(pd.Series([1, "1"])).tolist() == [1, "1"]
    assert len(read_users([])) == 0


NO_IDS: dict[str, Callable[[], Any]] = {
    "float": lambda: [1, 2.0],
    "floats": lambda: np.array([1.0]),
    "bool": lambda: [True],
    "numpy bool": lambda: [np.True_],
    "bools": lambda: np.array([True]),
    "bytes": lambda: [b"a"],
    "numpy bytes": lambda: np.array([b"a"]),
    "UUID": lambda: [uuid.UUID(int=1)],
    "None": lambda: ["a", None],
    "nan among strings": lambda: ["a", float("nan")],
    "large": lambda: [2**63],
    "large, numpy": lambda: np.array([2**63], dtype=np.uint64),
    "small": lambda: ["a", -(2**63) - 1],
    "empty string": lambda: ["a", ""],
    "long string": lambda: ["x" * 257],
    "half a character": lambda: ["a", "\ud800"],
    "text": lambda: "abc",
    "set": lambda: {1, 2},
    "dict": lambda: {1: 0.5},
    "generator": lambda: (user for user in [1]),
    "two-dimensional": lambda: np.array([[1, 2]]),
    "two-dimensional strings": lambda: np.array([["a"]]),
    "a number": lambda: np.int64(5),
    "masked": lambda: np.ma.array([1, 2], mask=[False, True]),
    "masked array without masked values": lambda: np.ma.array([1, 2]),
    "dates": lambda: np.array(["2020-01-01"], dtype="datetime64[D]"),
    "pandas Int64 with NA": lambda: pd.Series([1, None], dtype="Int64"),
    "pandas with NaN": lambda: pd.Series([1, None]),
    "pandas str with NaN": lambda: pd.Series(["a", None]),
    "pandas string with NA": lambda: pd.Series(["a", None], dtype="string[python]"),
    "pandas arrow string with NA": lambda: pd.Series(["a", None], dtype="string[pyarrow]"),
    "pandas category with NA": lambda: pd.Series(["a", None], dtype="category"),
    "pandas boolean": lambda: pd.Series([True, None], dtype="boolean"),
    "pandas MultiIndex": lambda: pd.MultiIndex.from_tuples([(1, 2)]),
    "pandas frame": lambda: SHUFFLED,
    "polars with null": lambda: pl.Series([1, None]),
    "polars str with null": lambda: pl.Series(["a", None]),
    "polars Boolean": lambda: pl.Series([True]),
    "polars Float64": lambda: pl.Series([1.0]),
    "what numpy cannot hold": Unreadable,
    "polars frame": lambda: pl.DataFrame({"user": [1]}),
}


@pytest.mark.parametrize("users", NO_IDS.values(), ids=NO_IDS)
def test_invalid_id_is_rejected(users: Callable[[], Any]) -> None:
    with pytest.raises(InvalidRequest):
        read_users(users())


NUMBERS = {
    "list": [0.1, 0.2, 0.3],
    "tuple": (0.1, 0.2, 0.3),
    "list of numpy floats": [np.float64(0.1), 0.2, 0.3],
    "float64": np.array([0.1, 0.2, 0.3]),
    "big-endian": np.array([0.1, 0.2, 0.3], dtype=">f8"),
    "objects": np.array([0.1, 0.2, 0.3], dtype=object),
    "pandas": pd.Series([0.1, 0.2, 0.3], index=[2, 0, 1]),
    "pandas, sorted": SHUFFLED["norm"],
    "pandas Float64": pd.Series([0.1, 0.2, 0.3], dtype="Float64"),
    "pandas arrow": pd.Series([0.1, 0.2, 0.3], dtype="double[pyarrow]"),
    "pandas category": pd.Series([0.1, 0.2, 0.3], dtype="category"),
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
    for norms in ([1, 2], [1, 2.0], np.array([1, 2]), pd.Series([1, 2]), pl.Series([1, 2])):
        assert read_norms(norms, 2, None)[0].tolist() == [1.0, 2.0]
    assert read_norms([], 0, None)[0].shape == (0,)


NO_NUMBERS: dict[str, Callable[[], Any]] = {
    "text": lambda: [1.0, "2"],
    "texts": lambda: ["1", "2"],
    "numpy text": lambda: np.array(["1", "2"]),
    "pandas text": lambda: pd.Series(["1", "2"]),
    "bool": lambda: [1.0, True],
    "bools": lambda: np.array([True, False]),
    "pandas bools": lambda: pd.Series([True, False]),
    "polars bools": lambda: pl.Series([True, False]),
    "complex": lambda: np.array([1j, 2]),
    "Decimal": lambda: [1.0, Decimal(1)],
    "polars Decimal": lambda: pl.Series([Decimal("1.5"), Decimal("2.5")]),
    "long double": lambda: np.array([1, 2], dtype=np.longdouble),
    "set": lambda: {1.0, 2.0},
    "a number": lambda: 1.0,
    "masked": lambda: np.ma.array([1.0, 2.0], mask=[False, True]),
    "masked array without masked values": lambda: np.ma.array([1.0, 2.0]),
}


@pytest.mark.parametrize("numbers", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_invalid_number_is_rejected(numbers: Callable[[], Any]) -> None:
    with pytest.raises(InvalidRequest):
        read_norms(numbers(), 2, None)
    with pytest.raises(InvalidRequest):
        read_contributions(numbers(), 2, None)


NO_NORMS: dict[str, Callable[[], Any]] = {
    "None": lambda: [1.0, None],
    "pandas NA": lambda: pd.Series([1.0, pd.NA], dtype=object),
    "large integers": lambda: np.array([1, 2**53 + 1]),
    "large integers beside floats": lambda: [0.5, 2**53 + 1],
    "integers beyond 64 bits": lambda: [1, 2**70 + 1],
    "NaN": lambda: [1.0, np.nan],
    "infinite": lambda: [1.0, np.inf],
    "negative": lambda: [-1e-300, 1.0],
    "pandas Float64 with NA": lambda: pd.Series([1, None], dtype="Float64"),
    "polars with null": lambda: pl.Series([1.0, None]),
    "too few": lambda: [1.0],
    "vectors": lambda: [[1.0], [2.0]],
    "pandas frame": lambda: pd.DataFrame({"norm": [1.0, 2.0]}),
}


@pytest.mark.parametrize("norms", NO_NORMS.values(), ids=NO_NORMS)
def test_invalid_norm_is_rejected(norms: Callable[[], Any]) -> None:
    with pytest.raises(InvalidRequest):
        read_norms(norms(), 2, None)


FRAME = pd.DataFrame({"x": [1.0, 2.0], "y": [3, 4]}, index=[1, 0])

VECTORS = {
    "lists": [[1.0, 3], [2.0, 4]],
    "tuples": ((1.0, 3.0), (2.0, 4.0)),
    "arrays": [np.array([1.0, 3.0]), np.array([2, 4])],
    "pandas rows": [pd.Series([1.0, 3.0], index=[1, 0]), pd.Series([2, 4])],
    "array": np.array([[1.0, 3.0], [2.0, 4.0]]),
    "pandas frame": FRAME,
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
        pd.DataFrame({"x": pd.array([1, None], dtype="Int64")}),
        pl.DataFrame({"x": [1, None]}),
    ):
        assert read_contributions(frame, 2, 1).tolist() == [[1.0], [0.0]]


NO_VECTORS: dict[str, Callable[[], Any]] = {
    "a bool column": lambda: pd.DataFrame({"x": [1.0, 2.0], "y": [True, False]}),
    "a polars bool column": lambda: pl.DataFrame({"x": [1.0, 2.0], "y": [True, False]}),
    "a text column": lambda: pl.DataFrame({"x": ["1", "2"]}),
    "bools": lambda: [[1.0, True], [2.0, False]],
    "rows of bools": lambda: [np.array([True]), np.array([1.0])],
    "ragged": lambda: [[1.0], [2.0, 3.0]],
    "ragged arrays": lambda: [np.ones(1), np.ones(2)],
    "polars List": lambda: pl.Series([[1.0], [2.0, 3.0]]),
    "no columns": lambda: pd.DataFrame(index=[0, 1]),
    "an arrow table": lambda: pa.table({"x": [1.0, 2.0]}),
}


@pytest.mark.parametrize("contributions", NO_VECTORS.values(), ids=NO_VECTORS)
def test_invalid_vector_is_rejected(contributions: Callable[[], Any]) -> None:
    for dimension in (1, 2):
        with pytest.raises(InvalidRequest):
            read_contributions(contributions(), 2, dimension)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("clip_norm", [0.1, 1.0, 1 / 3, 1e-30, 0.7])
def test_norms_clipped_in_float32_are_within_the_clip_norm(
    kind: type[np.floating], clip_norm: float
) -> None:
    clipped = np.minimum(np.array([0.0, 5.0], dtype=kind), kind(clip_norm))
    norms, limit = read_norms(clipped, 2, clip_norm)
    assert norms.tolist() == clipped.astype(float).tolist()  # charged as they are given
    assert limit is not None
    assert clip_norm <= limit
    assert float(np.nextafter(kind(limit), kind(0))) < clip_norm  # the least of its type
    above = np.nextafter(kind(limit), kind(np.inf))
    with pytest.raises(InvalidRequest):
        read_norms(np.array([0.0, above], dtype=kind), 2, clip_norm)


def test_clip_norm_beyond_float16_is_kept() -> None:
    assert read_norms(np.ones(1, np.float32), 1, 1e300)[1] == 1e300


def test_float64_norms_are_compared_with_the_exact_clip_norm() -> None:
    with pytest.raises(InvalidRequest):
        read_norms([np.nextafter(0.1, 1)], 1, 0.1)
    assert read_norms([0.1], 1, 0.1)[1] == 0.1


@pytest.mark.parametrize("clip_norm", [-1.0, np.nan, np.inf, "1", True])
def test_clip_norm_must_be_a_norm(clip_norm: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_norms([0.0], 1, clip_norm)
