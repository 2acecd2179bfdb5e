"""Reports on realised histories: bounds of each user's privacy loss. They never admit a step.

A user's history is a histogram of steps over the levels of a `NormGrid`; `ReportAccountant` turns
histograms into (epsilon, delta). The reports are output-specific, for one user (Yu et al.,
Def. 4); see `accounting.reports.accountant`.
"""

from __future__ import annotations

from accounting.reports.accountant import (
    METHODS,
    BoundedArray,
    Method,
    ReportAccountant,
)
from accounting.reports.bounds import Bounds
from accounting.reports.grid import NormGrid
from accounting.reports.saddlepoint import SaddlePointReport

__all__ = [
    "METHODS",
    "BoundedArray",
    "Bounds",
    "Method",
    "NormGrid",
    "ReportAccountant",
    "SaddlePointReport",
]
