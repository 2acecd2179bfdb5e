"""Filters and odometers from the literature, for programs that use the library alone.

No measure of a dataset refers to them, and the service does not use them.
"""

from accounting.research.lecuyer import LecuyerOdometer
from accounting.research.local_filter import LocalFilter
from accounting.research.rogers import RogersFilter
from accounting.research.tick_odometers import GdpOdometer, RenyiTracker

__all__ = ["GdpOdometer", "LecuyerOdometer", "LocalFilter", "RenyiTracker", "RogersFilter"]
