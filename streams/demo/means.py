"""Means with standard errors."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean, stdev


def mean_and_error(name: str, values: Iterable[float]) -> dict[str, float]:
    """Return the mean under a name, and its standard error if there are several values."""
    found = [float(value) for value in values]
    if len(found) == 1:
        return {name: found[0]}
    return {name: mean(found), f"{name}_standard_error": stdev(found) / len(found) ** 0.5}


def with_error(form: str, values: Iterable[float]) -> str:
    """Return the formatted mean, with its standard error if there are several values."""
    average, *error = mean_and_error("", values).values()
    return " ± ".join([form.format(average), *map(form.replace("+", "").format, error)])
