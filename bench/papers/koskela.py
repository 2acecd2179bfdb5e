"""Koskela, Tobaben and Honkela, section 6: what a filter does to groups of users."""

from __future__ import annotations

import numpy as np

from accounting import gdp_budget, gdp_to_epsilon
from accounting.release.clipping import clip_factors, norm_products, row_norms
from bench.papers.images import CLASSES, Images
from bench.papers.norms import class_means, cross_entropy
from bench.papers.rows import Row, with_error
from streams import Turnstile
from streams.trainers.loop import rounded_rows, row_products, softmax

_DELTA = 1e-5
_EPSILON, _CLIP_NORM, _LEARNING_RATE = 1.0, 0.7, 20.0
_FULL_STEPS = 50
"""The steps that the budget pays for at the clip norm. The filter makes as many again."""
_TRIALS = 5


def filtered_classes(images: Images) -> list[Row]:
    """Section 6 and Fig. 2: groups when the worst case would stop, and after as many steps more.

    The paper's groups are patients with and without a diagnosis; here they are classes of images.
    """
    found = np.array([_filter(images, seed) for seed in range(_TRIALS)])
    epsilon, loss = found.transpose(2, 0, 1, 3)  # (trials, before and after, classes)
    pairs = zip(epsilon[:, 0], loss[:, 0], strict=True)
    cells = (
        (
            "Pearson's r of a class's average ε and its test loss, before filtering",
            "positive",
            with_error([float(np.corrcoef(*pair)[0, 1]) for pair in pairs], 3),
        ),
        (
            "largest less smallest average ε: before, after",
            "smaller after",
            _before_and_after(np.ptp(epsilon, axis=2), 3),
        ),
        (
            "groups whose test loss is larger after",
            "4 of 5",
            f"{with_error((loss[:, 1] > loss[:, 0]).sum(axis=1), 1)} of {CLASSES}",
        ),
    )
    source = f"K sec. 6, Fig. 2 ({images.name}, {_FULL_STEPS} steps and as many with the filter)"
    return [Row(source, *cell) for cell in cells]


def _filter(images: Images, seed: int) -> list[list[np.ndarray]]:
    """Train by filtered gradient descent (Algorithm 1, full batches).

    Returns:
        before and after filtering, each class's average epsilon and test loss.
    """
    random = np.random.default_rng(seed)
    noise_stddev = np.sqrt(_FULL_STEPS) * _CLIP_NORM / gdp_budget(_EPSILON, _DELTA)
    service = Turnstile.in_memory(partitions=1)
    service.create_dataset(
        "images", measure="gdp", epsilon=_EPSILON, delta=_DELTA, user_ids="integer"
    )
    run = service.run("images", "training")
    rows, targets = rounded_rows(images.train), np.eye(CLASSES)[images.train_labels]
    lengths = row_norms(rows)
    weights, squares = np.zeros((rows.shape[1], CLASSES)), np.zeros(len(rows))
    found = []
    for step in range(1, 2 * _FULL_STEPS + 1):
        residuals = softmax(row_products(rows, weights)) - targets
        norms = norm_products(row_norms(residuals), lengths)
        clipped = np.minimum(norms, _CLIP_NORM)
        granted = run.charge(
            images.users, clipped, noise_stddev=noise_stddev, clip_norm=_CLIP_NORM
        ).granted
        squares += granted**2
        gradient = rows.T @ (residuals * clip_factors(norms, granted)[:, np.newaxis])
        gradient += random.normal(0.0, noise_stddev, gradient.shape)
        weights -= _LEARNING_RATE / len(rows) * gradient
        if step % _FULL_STEPS == 0:
            scores = images.test @ weights
            epsilons = np.asarray(gdp_to_epsilon(np.sqrt(squares) / noise_stddev, _DELTA))
            losses = cross_entropy(scores, images.test_labels)
            found.append(
                [
                    class_means(epsilons, images.train_labels),
                    class_means(losses, images.test_labels),
                ]
            )
    return found


def _before_and_after(values: np.ndarray, digits: int = 2) -> str:
    return ", ".join(with_error(values[:, time], digits) for time in (0, 1))
