"""Filters and odometers from the literature that the service does not use.

No measure of a dataset refers to them. They serve programs that use the library alone, and
comparisons with the service's filters.
"""

from accounting.research.lecuyer import LecuyerOdometer
from accounting.research.local_filter import LocalFilter
from accounting.research.rogers import RogersFilter
from accounting.research.tick_odometers import GdpOdometer, RenyiTracker

__all__ = [
    "GdpOdometer",
    "LecuyerOdometer",
    "LocalFilter",
    "RenyiTracker",
    "RogersFilter",
]
