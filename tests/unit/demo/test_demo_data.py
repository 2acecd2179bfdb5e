"""Loaders, on small files that the tests write."""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from streams.demo.errors import DemoError
from streams.demo.images import (
    FEATURE_NORM,
    IMAGES_FILE,
    LABELS_FILE,
    load_digits,
    load_mnist,
    read_idx,
)
from streams.demo.purchases import load_purchases


def write_idx(path: Path, values: np.ndarray, kind: int = 8) -> None:
    head = bytes([0, 0, kind, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    path.write_bytes(gzip.compress(head + values.astype(np.uint8).tobytes()))


def write_images(folder: Path, count: int = 20, labels: int | None = None) -> np.ndarray:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (count, 4, 3))
    pixels[0] = 0
    write_idx(folder / IMAGES_FILE, pixels)
    write_idx(folder / LABELS_FILE, random.integers(0, 10, count if labels is None else labels))
    return pixels


def test_idx_files_are_read_in_their_shape(tmp_path: Path) -> None:
    values = np.arange(24).reshape(2, 3, 4)
    write_idx(tmp_path / "x.gz", values)
    np.testing.assert_array_equal(read_idx(tmp_path / "x.gz"), values)


def test_mnist_is_split_the_same_way_every_time(tmp_path: Path) -> None:
    write_images(tmp_path)
    first, second = load_mnist(tmp_path), load_mnist(tmp_path)
    assert (len(first.train), len(first.test)) == (16, 4)
    np.testing.assert_array_equal(first.train, second.train)
    np.testing.assert_array_equal(first.test_labels, second.test_labels)
    assert first.users.tolist() == list(range(16))


def test_no_image_is_in_training_and_test() -> None:
    digits = load_digits()
    assert len(digits.train) + len(digits.test) == 1797
    rows = np.vstack([digits.train, digits.test])
    assert len(np.unique(rows, axis=0)) == 1797


def test_every_image_has_the_feature_norm_and_a_blank_one_less(tmp_path: Path) -> None:
    write_images(tmp_path)
    images = load_mnist(tmp_path)
    norms = np.sort(np.linalg.norm(np.vstack([images.train, images.test]), axis=1))
    np.testing.assert_allclose(norms[1:], FEATURE_NORM)
    assert norms[0] == pytest.approx(0.3)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0",
        b"not an idx file",
        b"\0\0\x08\0",
        b"\0\0\x0d\1\0\0\0\1x",
        b"\0\0\x08\1\0\0\0\2x",
        b"\0\0\x08\3\0\0\0\1",
    ],
    ids=repr,
)
def test_other_files_are_not_taken_for_idx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DemoError, match=r"x\.gz"):
        read_idx(path)


def test_missing_or_damaged_idx_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="cannot read"):
        load_mnist(tmp_path)
    path = tmp_path / "x.gz"
    path.write_bytes(b"plain")
    with pytest.raises(DemoError, match="cannot read"):
        read_idx(path)
    path.write_bytes(gzip.compress(bytes(1000))[:-9])
    with pytest.raises(DemoError, match="cannot read"):
        read_idx(path)


def test_images_and_labels_must_belong_together(tmp_path: Path) -> None:
    write_images(tmp_path, labels=3)
    with pytest.raises(DemoError, match="do not belong together"):
        load_mnist(tmp_path)
    write_images(tmp_path)
    write_idx(tmp_path / LABELS_FILE, np.full(20, 11))
    with pytest.raises(DemoError, match="label 11"):
        load_mnist(tmp_path)


def test_purchases_become_buyers_by_day_without_gaps(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    lines = [
        " customer_id  date number_of_cds  dollar_value",
        " 00002 19970103  1   12.00",
        " 00001 19970101  1   11.77",
        " 00002 19970101  2   77.00",
        " 00001 19970101  5    9.00",
        "",
    ]
    path.write_bytes("\r\n".join(lines).encode())
    purchases = load_purchases(path)
    assert purchases.first_day == date(1997, 1, 1)
    assert [buyers.tolist() for buyers in purchases.buyers] == [[1, 2], [], [2]]
    assert purchases.customers == 2


@pytest.mark.parametrize(
    "line", ["1 19970101 1", "x 19970101 1 1.0", "1 19971301 1 1.0", "1 19970101 1 1.0 extra"]
)
def test_lines_that_are_no_purchase_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text(f"header\n1 19970101 1 1.0\n{line}\n")
    with pytest.raises(DemoError, match="line 3"):
        load_purchases(path)


def test_purchases_that_are_missing_or_empty_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="cannot read"):
        load_purchases(tmp_path / "nothing.txt")
    (tmp_path / "log.txt").write_text("header\n")
    with pytest.raises(DemoError, match="no purchases"):
        load_purchases(tmp_path / "log.txt")
