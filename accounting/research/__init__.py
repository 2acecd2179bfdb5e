"""Filters, odometers and conversions from the literature that the service does not use.

No measure of a dataset refers to them. They serve programs that use the library alone, and
comparisons with the service's filters.
"""

from accounting.research.approx_zcdp import ApproxZcdpFilter
from accounting.research.approximate_gdp import approximate_mu
from accounting.research.groups import gdp_of_group, renyi_of_pair, zcdp_of_group
from accounting.research.lecuyer import LecuyerOdometer
from accounting.research.local_filter import LocalFilter
from accounting.research.rogers import RogersFilter
from accounting.research.saddle_point import EqualSteps, SaddlePointDelta, saddle_point_delta
from accounting.research.trackers import GdpOdometer, RenyiTracker

__all__ = [
    "ApproxZcdpFilter",
    "EqualSteps",
    "GdpOdometer",
    "LecuyerOdometer",
    "LocalFilter",
    "RenyiTracker",
    "RogersFilter",
    "SaddlePointDelta",
    "approximate_mu",
    "gdp_of_group",
    "renyi_of_pair",
    "saddle_point_delta",
    "zcdp_of_group",
]
