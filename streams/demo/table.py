"""The final table of the demos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from accounting import zcdp_to_epsilon
from streams.demo.errors import demo_extra
from streams.demo.monitoring import MonitoringResult
from streams.demo.training import TrainingResult

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Seen:
    """What came back from the service while a demo ran."""

    dataset: str
    halts: int
    checkpoints: int


def summary_of_training(result: TrainingResult, seen: Seen) -> dict[str, object]:
    """The figures of a training, for programs."""
    trace, settings = result.trace, result.settings
    return {
        "dataset": seen.dataset,
        "data": result.images.name,
        "users": len(trace.spent),
        "steps": settings.steps,
        "worst_case_steps": result.k0,
        "admitted": int(trace.admitted.sum()),
        "halted": int(trace.halted.sum()),
        "halt_events_received": seen.halts,
        "odometer_checkpoints_received": seen.checkpoints,
        "exhausted_users": len(trace.spent) - int(trace.active[-1]),
        "noise_stddev": settings.noise_stddev,
        "delta": settings.delta,
        "epsilon": float(zcdp_to_epsilon(settings.rho, settings.delta)),
        "epsilon_worst_case_same_steps": result.epsilon_of_all_steps,
        "accuracy": result.accuracy,
        "accuracy_standard_error": result.accuracy_error,
        "accuracy_worst_case": result.accuracy_worst_case,
        "accuracy_worst_case_more_noise": result.accuracy_more_noise,
        "charges_per_second": settings.steps / trace.charge_seconds,
        "user_charges_per_second": settings.steps * len(trace.spent) / trace.charge_seconds,
        "seconds": trace.seconds,
    }


def summary_of_monitoring(result: MonitoringResult, seen: Seen) -> dict[str, object]:
    """The figures of a monitoring, for programs."""
    settings, days = result.settings, len(result.answers)
    return {
        "dataset": seen.dataset,
        "data": "CDNOW",
        "users": result.purchases.customers,
        "steps": days,
        "worst_case_steps": result.k0,
        "admitted": int(result.admitted.sum()),
        "halted": int((result.buyers - result.admitted).sum()),
        "halt_events_received": seen.halts,
        "odometer_checkpoints_received": seen.checkpoints,
        "exhausted_users": result.purchases.customers - int(result.active[-1]),
        "noise_stddev": result.noise_stddev,
        "delta": settings.delta,
        "epsilon": float(zcdp_to_epsilon(settings.rho, settings.delta)),
        "epsilon_worst_case_same_steps": float(
            zcdp_to_epsilon(days / (2.0 * result.noise_stddev**2), settings.delta)
        ),
        "mean_buyers": float(np.mean(result.buyers)),
        "mean_absolute_error": result.mean_error,
        "mean_buyers_not_counted": result.mean_missing,
        "error_bound_95": result.error_bound,
        "charges_per_second": days / result.charge_seconds,
        "user_charges_per_second": int(result.buyers.sum()) / result.charge_seconds,
        "seconds": result.charge_seconds,
    }


_ROWS = (
    ("users", "users", ",d"),
    ("steps", "steps", ",d"),
    ("steps by worst case, same noise", "worst_case_steps", ",d"),
    ("noise (standard deviation)", "noise_stddev", ".2f"),
    ("contributions admitted", "admitted", ",d"),
    ("contributions halted", "halted", ",d"),
    ("HALT events received", "halt_events_received", ",d"),
    ("odometer checkpoints received", "odometer_checkpoints_received", ",d"),
    ("users who ran out", "exhausted_users", ",d"),
    ("epsilon, guaranteed by the filter", "epsilon", ".2f"),
    ("epsilon by worst case, same steps", "epsilon_worst_case_same_steps", ".2f"),
    ("accuracy, individual", "accuracy", ".1%"),
    ("accuracy, worst case, same noise", "accuracy_worst_case", ".1%"),
    ("accuracy, worst case, same steps", "accuracy_worst_case_more_noise", ".1%"),
    ("standard error of an accuracy", "accuracy_standard_error", ".1%"),
    ("buyers a day, mean", "mean_buyers", ".1f"),
    ("error of an answer, mean", "mean_absolute_error", ".1f"),
    ("  noise alone, 95 % bound", "error_bound_95", ".1f"),
    ("  buyers a day not counted, mean", "mean_buyers_not_counted", ".1f"),
    ("steps charged per second", "charges_per_second", ",.1f"),
    ("users charged per second", "user_charges_per_second", ",.0f"),
)


def table_of(summaries: list[dict[str, object]]) -> Table:
    """A column per demo; rows that no demo has are left out."""
    with demo_extra():
        from rich.table import Table
    table = Table(title="dp-turnstile: what individual accounting bought", title_justify="left")
    table.add_column("")
    for summary in summaries:
        table.add_column(str(summary["data"]), justify="right")
    for words, key, form in _ROWS:
        if any(key in summary for summary in summaries):
            cells = [format(s[key], form) if key in s else "" for s in summaries]
            table.add_row(words, *cells)
    return table
