"""Private releases: each states its cost, which must be charged before the release runs."""

from __future__ import annotations

from accounting.costs.costs import StatedCost
from accounting.release.aggregates import (
    MeanRelease,
    QuantilesRelease,
    release_mean,
    release_quantiles,
)
from accounting.release.clipping import clip_factors, clip_rows, norm_products, round_to, row_norms
from accounting.release.counter import ContinualCounter
from accounting.release.exact_noise import ExactNoise
from accounting.release.key_selection import KeySelection
from accounting.release.sparse_vector import SparseVector

__all__ = [
    "ContinualCounter",
    "ExactNoise",
    "KeySelection",
    "MeanRelease",
    "QuantilesRelease",
    "SparseVector",
    "StatedCost",
    "clip_factors",
    "clip_rows",
    "norm_products",
    "release_mean",
    "release_quantiles",
    "round_to",
    "row_norms",
]
