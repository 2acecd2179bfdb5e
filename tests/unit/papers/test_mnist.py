"""The loader of MNIST, on small files that the tests write."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from bench.papers.mnist import IMAGES_FILE, LABELS_FILE, load_mnist, read_idx


def write_idx(path: Path, values: np.ndarray, kind: int = 8) -> None:
    head = bytes([0, 0, kind, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    path.write_bytes(gzip.compress(head + values.astype(np.uint8).tobytes()))


def test_idx_files_are_read_in_their_shape(tmp_path: Path) -> None:
    values = np.arange(24).reshape(2, 3, 4)
    write_idx(tmp_path / "x.gz", values)
    np.testing.assert_array_equal(read_idx(tmp_path / "x.gz"), values)
    write_idx(tmp_path / "x.gz", values, kind=13)
    with pytest.raises(ValueError) as caught:
        read_idx(tmp_path / "x.gz")
    assert "x.gz" in str(caught.value)


def test_mnist_is_split_the_same_way_every_time(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    write_idx(tmp_path / IMAGES_FILE, random.integers(0, 256, (20, 4, 3)))
    write_idx(tmp_path / LABELS_FILE, random.integers(0, 10, 20))
    first, second = load_mnist(tmp_path), load_mnist(tmp_path)
    assert (len(first.train), len(first.test)) == (16, 4)
    np.testing.assert_array_equal(first.train, second.train)
    np.testing.assert_array_equal(first.test_labels, second.test_labels)
