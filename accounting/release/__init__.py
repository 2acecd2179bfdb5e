"""Exact noise, clipping to the charged norm, and the selection of private keys."""

from __future__ import annotations

from accounting.release.clipping import clip_factors, clip_rows, norm_products, round_to, row_norms
from accounting.release.exact_noise import ExactNoise
from accounting.release.key_selection import KeySelection

__all__ = [
    "ExactNoise",
    "KeySelection",
    "clip_factors",
    "clip_rows",
    "norm_products",
    "round_to",
    "row_norms",
]
