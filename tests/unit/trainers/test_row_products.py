"""Rows of a product, and gradients made of it, do not depend on the other rows of a batch."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from streams.trainers.loop import rounded_rows, row_products, softmax

SHAPES = [(3, 2), (65, 10), (785, 10), (784, 100)]


def example(columns: int, classes: int, rows: int = 65) -> tuple[NDArray, NDArray]:
    random = np.random.default_rng(columns)
    return random.normal(size=(rows, columns)), random.normal(size=(columns, classes))


def product(rows: NDArray, matrix: NDArray) -> NDArray:
    return row_products(rounded_rows(rows), matrix)


@pytest.mark.parametrize(("columns", "classes"), SHAPES)
def test_a_row_is_the_same_without_another_user_in_the_batch(columns: int, classes: int) -> None:
    rows, matrix = example(columns, classes)
    alone = np.concatenate([softmax(product(rows[[place]], matrix)) for place in range(65)])
    for size in range(1, 65):
        assert np.array_equal(softmax(product(rows[1 : size + 1], matrix)), alone[1 : size + 1])
        with_another = softmax(product(rows[: size + 1], matrix))
        assert np.array_equal(with_another, alone[: size + 1])


def test_entries_are_exact_products_of_rounded_factors() -> None:
    rows, matrix = example(9, 3, rows=5)
    rows[0], rows[1, 3], matrix[:, 2] = 0.0, 1e12, 2.0**-30
    bits = (53 - (9).bit_length()) // 2

    def rounded(value: float, largest: float) -> Fraction:
        unit = Fraction(2) ** (int(np.frexp(largest)[1]) - bits)
        return round(Fraction(value) / unit) * unit

    found = product(rows, matrix)
    for i, row in enumerate(rows):
        for j, column in enumerate(matrix.T):
            exact = sum(
                rounded(x, np.abs(row).max()) * rounded(y, np.abs(column).max())
                for x, y in zip(row.tolist(), column.tolist(), strict=True)
            )
            assert Fraction(float(found[i, j])) == exact


@pytest.mark.parametrize("size", [1e-290, 1e-150, 1e150])
def test_rows_of_any_size_are_multiplied(size: float) -> None:
    rows, matrix = example(4, 2)
    expected = product(rows, matrix) * size
    assert product(rows * size, matrix) == pytest.approx(expected, rel=1e-5, abs=0.0)


def test_no_rows_are_no_product() -> None:
    rows, matrix = example(4, 2)
    assert product(rows[:0], matrix).shape == (0, 2)
