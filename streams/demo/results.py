"""The report of both scenarios: the work of the service, and means with standard errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TypeAlias

from streams.sdk.client import Turnstile

Progress: TypeAlias = Callable[[], object]
"""Called after each step that the service has decided."""


@dataclass(frozen=True)
class ChargedDataset:
    """The work of the service for one dataset.

    Attributes:
        dataset: the dataset.
        steps: number of charged steps.
        admitted: number of admitted contributions.
        halted: number of contributions that were not admitted.
        halt_events: number of HALT events that were read from Kafka afterwards.
        odometer_records: number of odometer records that were read from Kafka afterwards.
        seconds: duration of the scenario.
    """

    dataset: str
    steps: int
    admitted: int
    halted: int
    halt_events: int
    odometer_records: int
    seconds: float


def charged_by(
    turnstile: Turnstile, dataset: str, steps: int, admitted: int, halted: int, seconds: float
) -> ChargedDataset:
    """Read back from Kafka what the service published about a dataset."""
    halt_events = sum(1 for _ in turnstile.halts(dataset, follow=False))
    records = sum(1 for _ in turnstile.odometer(dataset, follow=False))
    return ChargedDataset(dataset, steps, admitted, halted, halt_events, records, seconds)


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
