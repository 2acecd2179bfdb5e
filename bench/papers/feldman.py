"""Feldman and Zrnic, section 5.1: gradient descent with and without a filter, on samples."""

from __future__ import annotations

from bench.papers.images import Images
from bench.papers.rows import Row
from bench.papers.sampled import Plan, mean_and_error, noise_of, train, worst_case_steps

_EPSILON = 0.3
_TRIALS = 5
_TUNED_STEPS = 100
_REGIMES = {
    "tuned": (1.0, "93.29 ± 0.49, 93.64 ± 0.46"),
    "suboptimal clip": (1.5, "84.47 ± 3.95, 92.25 ± 0.91"),
}
"""By how much the clip norm is multiplied, and the published accuracies."""


def training(images: Images) -> list[Row]:
    """Compute accuracies: a filter makes steps that the worst case cannot.

    As in the paper's appendix, the suboptimal clip norm is half as large again at the same noise,
    and a filter goes on for 35 steps, of which every fifth model is looked at.
    """
    is_mnist = images.name == "MNIST"
    rate, tuned_norm, learning_rate = (0.05, 0.7, 8.0) if is_mnist else (0.1, 0.8, 6.0)
    rows, noise = [], noise_of(_EPSILON, _TUNED_STEPS, rate, tuned_norm)
    for words, (longer, told) in _REGIMES.items():
        clip_norm = longer * tuned_norm
        stops = worst_case_steps(_EPSILON, noise, rate, clip_norm)
        plans = (
            Plan(_EPSILON, clip_norm, noise, rate, learning_rate, stops, None),
            Plan(_EPSILON, clip_norm, noise, rate, learning_rate, stops + 35, 0, looks=8),
        )
        plain, filtered = (
            mean_and_error([train(images, plan, seed) for seed in range(_TRIALS)]) for plan in plans
        )
        rows.append(
            Row(
                f"FZ section 5.1 ({images.name}, sampled)",
                f"ε = {_EPSILON:g}, {words}, {stops} steps: worst case, with filtering",
                f"{told} %",
                f"{plain}, {filtered}",
            )
        )
    return rows
