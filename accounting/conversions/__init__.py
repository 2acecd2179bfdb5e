"""From Rényi DP, zCDP and Gaussian DP to (epsilon, delta), and back to budgets; groups of users."""

from accounting.conversions.levels import (
    gdp_budget,
    gdp_to_delta,
    gdp_to_epsilon,
    renyi_budgets,
    renyi_to_delta,
    renyi_to_epsilon,
    zcdp_budget,
    zcdp_to_delta,
    zcdp_to_epsilon,
)

__all__ = [
    "gdp_budget",
    "gdp_to_delta",
    "gdp_to_epsilon",
    "renyi_budgets",
    "renyi_to_delta",
    "renyi_to_epsilon",
    "zcdp_budget",
    "zcdp_to_delta",
    "zcdp_to_epsilon",
]
