"""The report of both scenarios: the work of the service, and means with standard errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import mean, stdev
from typing import Any, TypeAlias

from streams.sdk.client import Turnstile

Progress: TypeAlias = Callable[[], object]
"""Called after each step that the service has decided."""


def charged_by(
    turnstile: Turnstile, dataset: str, steps: int, admitted: int, halted: int, seconds: float
) -> dict[str, Any]:
    """Return the work of the service for one dataset, and how many records Kafka has of it.

    ``admitted`` and ``halted`` count contributions, and ``seconds`` is the time of the scenario.
    """
    return {
        "dataset": dataset,
        "steps": steps,
        "admitted": admitted,
        "halted": halted,
        "halt_events": sum(1 for _ in turnstile.halts(dataset, follow=False)),
        "odometer_records": sum(1 for _ in turnstile.odometer(dataset, follow=False)),
        "seconds": seconds,
    }


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
