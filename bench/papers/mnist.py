"""The 10,000 MNIST test images, from their idx files, split again into training and test images."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np

from bench.papers.images import Images, split

IMAGES_FILE = "t10k-images-idx3-ubyte.gz"
LABELS_FILE = "t10k-labels-idx1-ubyte.gz"


def load_mnist(folder: Path) -> Images:
    """Read both files of a folder."""
    pixels, labels = read_idx(folder / IMAGES_FILE), read_idx(folder / LABELS_FILE)
    rows = pixels.reshape(len(pixels), -1).astype(np.float64)
    return split("MNIST", rows, labels.astype(np.int64))


def read_idx(path: Path) -> np.ndarray:
    """Read an array of unsigned bytes from a gzipped idx file."""
    content = gzip.decompress(path.read_bytes())
    if content[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an idx file of unsigned bytes")
    head = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:head], dtype=">u4").tolist()
    if len(content) - head != math.prod(shape):
        raise ValueError(f"{path} has {len(content) - head} values; its shape is {shape}")
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)
