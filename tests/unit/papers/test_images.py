"""Images are split for training and test, and bounded without a look at the data."""

from __future__ import annotations

import numpy as np
import pytest

from accounting.release.clipping import norm_products, row_norms
from bench.papers.images import CLASSES, CLIP_NORM, FEATURE_NORM, Images, features, load_digits
from streams.trainers.loop import row_products, softmax


@pytest.fixture(scope="module")
def digits() -> Images:
    return load_digits()


def test_no_image_is_in_training_and_test(digits: Images) -> None:
    rows = np.vstack([digits.train, digits.test])
    assert len(np.unique(rows, axis=0)) == len(rows) == 1797
    assert digits.users.tolist() == list(range(len(digits.train)))


def test_every_image_has_the_feature_norm_and_a_blank_one_less() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 12)).astype(np.float64)
    pixels[0] = 0.0
    norms = np.linalg.norm(features(pixels), axis=1)
    np.testing.assert_allclose(norms[1:], FEATURE_NORM)
    assert norms[0] == pytest.approx(0.3)


def test_no_gradient_is_longer_than_the_clip_norm(digits: Images) -> None:
    assert row_norms(digits.train).max() <= FEATURE_NORM * (1 + 1e-12)
    for seed in range(5):
        weights = np.random.default_rng(seed).normal(0, 3, (digits.train.shape[1], CLASSES))
        residuals = softmax(row_products(digits.train, weights))
        residuals -= np.eye(CLASSES)[digits.train_labels]
        norms = norm_products(row_norms(residuals), row_norms(digits.train))
        assert norms.max() <= CLIP_NORM * (1 + 1e-12)
