"""The figures of the demos: as numbers for programs, and as a table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from accounting import zcdp_to_epsilon
from streams.demo.errors import demo_extra
from streams.demo.monitoring import MonitoringResult
from streams.demo.sampled import SampledResult
from streams.demo.training import TrainingResult

if TYPE_CHECKING:
    from rich.table import Table

Summary: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """What came back from the service while a demo ran."""

    dataset: str
    halts: int
    checkpoints: int


def summary_of_training(result: TrainingResult, seen: Seen) -> Summary:
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
        "noise_stddev_equal_steps": settings.noise_stddev_equal_steps,
        "delta": settings.delta,
        "epsilon": float(zcdp_to_epsilon(settings.rho, settings.delta)),
        "epsilon_worst_case_same_steps": result.epsilon_of_all_steps,
        "accuracy": result.accuracy,
        "accuracy_worst_case": result.accuracy_worst_case,
        "accuracy_equal_steps": result.accuracy_equal_steps,
        "gain_over_worst_case": result.accuracy - result.accuracy_worst_case,
        "gain_over_equal_steps": result.accuracy - result.accuracy_equal_steps,
        "accuracy_error_of_test_images": result.accuracy_error,
        "charges_per_second": settings.steps / trace.charge_seconds,
        "user_charges_per_second": settings.steps * len(trace.spent) / trace.charge_seconds,
        "seconds": trace.seconds,
    }


def summary_of_sampled(result: SampledResult, dataset: str) -> Summary:
    """The figures of a sampled training, for programs."""
    trace, settings, unpaced = result.trace, result.settings, result.unpaced
    accuracy, equal, stopped = (
        float(curve[-1]) for curve in (trace.accuracy, result.equal_steps, result.same_noise)
    )
    summary = {
        "dataset": dataset,
        "data": f"{result.images.name}, samples, clip norm {settings.words}",
        "users": len(trace.spent),
        "sampling_rate": settings.sampling_rate,
        "clip_norm": settings.clip_norm,
        "steps": settings.steps,
        "worst_case_steps": len(result.same_noise),
        "users_at_the_end": int(trace.admitted[-1]),
        "noise_stddev": settings.noise_stddev,
        "noise_stddev_equal_steps": settings.noise_stddev_equal_steps,
        "delta": settings.delta,
        "epsilon": settings.epsilon,
        "spent_mean": float(np.mean(trace.spent)),
        "spent_median": float(np.median(trace.spent)),
        "accuracy": accuracy,
        "accuracy_worst_case": stopped,
        "accuracy_equal_steps": equal,
        "gain_over_worst_case": accuracy - stopped,
        "gain_over_equal_steps": accuracy - equal,
        "accuracy_error_of_test_images": result.accuracy_error,
        "charges_per_second": settings.steps / trace.charge_seconds,
        "user_charges_per_second": settings.steps * len(trace.spent) / trace.charge_seconds,
        "seconds": trace.seconds,
    }
    if unpaced is not None:
        summary["accuracy_unpaced"] = float(unpaced.accuracy[-1])
        summary["users_at_the_end_unpaced"] = int(unpaced.admitted[-1])
    return summary


def summary_of_monitoring(result: MonitoringResult, seen: Seen) -> Summary:
    """The figures of a monitoring, for programs."""
    settings, days = result.settings, len(result.answers)
    return {
        "dataset": seen.dataset,
        "data": result.purchases.name,
        "users": result.purchases.customers,
        "steps": days,
        "worst_case_steps": result.k0,
        "admitted": int(result.admitted.sum()),
        "halted": int((result.buyers - result.admitted).sum()),
        "halt_events_received": seen.halts,
        "odometer_checkpoints_received": seen.checkpoints,
        "exhausted_users": result.purchases.customers - int(result.active[-1]),
        "noise_stddev": result.noise_stddev,
        "noise_stddev_equal_steps": result.noise_stddev_equal_days,
        "delta": settings.delta,
        "epsilon": float(zcdp_to_epsilon(settings.rho, settings.delta)),
        "epsilon_worst_case_same_steps": float(
            zcdp_to_epsilon(days / (2.0 * result.noise_stddev**2), settings.delta)
        ),
        "mean_buyers": float(np.mean(result.buyers)),
        "mean_absolute_error": result.mean_error,
        "mean_absolute_error_worst_case": result.mean_error_same_noise,
        "mean_absolute_error_equal_steps": result.mean_error_equal_days,
        "mean_buyers_not_counted": result.mean_missing,
        **{f"not_counted_{year}": share for year, share in result.missing_by_year.items()},
        "error_bound_95": result.error_bound,
        "charges_per_second": days / result.seconds,
        "user_charges_per_second": int(result.buyers.sum()) / result.seconds,
        "seconds": result.seconds,
    }


def over_seeds(summaries: list[Summary]) -> Summary:
    """The means over the seeds of the noise, and the standard errors of those that vary."""
    first = summaries[0]
    means: Summary = {"seeds": len(summaries), "datasets": [s["dataset"] for s in summaries]}
    errors: dict[str, float] = {}
    for key, value in first.items():
        values = [summary[key] for summary in summaries]
        if any(other != value for other in values) and key != "dataset":
            means[key] = mean(values)
            errors[key] = stdev(values) / math.sqrt(len(values))
        elif key != "dataset":
            means[key] = value
    return {**means, "standard_errors": errors}


_ROWS: Final = (
    ("users", "users", ",.0f"),
    ("epsilon, guaranteed by the filter", "epsilon", ".2f"),
    ("sampling rate", "sampling_rate", ".2f"),
    ("clip norm", "clip_norm", ".2f"),
    ("steps", "steps", ",.0f"),
    ("noise (standard deviation)", "noise_stddev", ".2f"),
    ("  worst case, same noise: steps", "worst_case_steps", ",.0f"),
    ("  worst case, same steps: noise", "noise_stddev_equal_steps", ".2f"),
    ("  worst case, same steps and noise: epsilon", "epsilon_worst_case_same_steps", ".2f"),
    ("contributions admitted", "admitted", ",.0f"),
    ("contributions halted", "halted", ",.0f"),
    ("HALT events received", "halt_events_received", ",.0f"),
    ("odometer checkpoints received", "odometer_checkpoints_received", ",.0f"),
    ("users who ran out", "exhausted_users", ",.0f"),
    ("users in the last step, individual", "users_at_the_end", ",.0f"),
    ("  individual without a pace", "users_at_the_end_unpaced", ",.0f"),
    ("budget spent, individual, median user", "spent_median", ".0%"),
    ("  mean user", "spent_mean", ".0%"),
    ("accuracy, individual", "accuracy", ".1%"),
    ("  individual without a pace", "accuracy_unpaced", ".1%"),
    ("  worst case, same noise", "accuracy_worst_case", ".1%"),
    ("  worst case, same steps", "accuracy_equal_steps", ".1%"),
    ("individual less worst case, same noise", "gain_over_worst_case", ".1%"),
    ("individual less worst case, same steps", "gain_over_equal_steps", ".1%"),
    ("error of an accuracy: so few test images", "accuracy_error_of_test_images", ".1%"),
    ("buyers a day, mean", "mean_buyers", ".1f"),
    ("error of an answer, individual, mean", "mean_absolute_error", ".1f"),
    ("  worst case, same noise, before it stops", "mean_absolute_error_worst_case", ".1f"),
    ("  worst case, same days", "mean_absolute_error_equal_steps", ".1f"),
    ("buyers not counted, 1997", "not_counted_1997", ".1%"),
    ("buyers not counted, 1998", "not_counted_1998", ".1%"),
    ("steps charged per second", "charges_per_second", ",.1f"),
    ("users charged per second", "user_charges_per_second", ",.0f"),
)


def table_of(summaries: list[Summary]) -> Table:
    """A column per demo; rows that no demo has are left out."""
    with demo_extra():
        from rich.table import Table
    seeds = max((summary["seeds"] for summary in summaries), default=1)
    of_seeds = f"; means over {seeds} seeds of the noise ± standard errors" if seeds > 1 else ""
    title = f"dp-turnstile: individual accounting and the worst case{of_seeds}"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for summary in summaries:
        table.add_column(str(summary["data"]), justify="right")
    for words, key, form in _ROWS:
        if any(key in summary for summary in summaries):
            table.add_row(words, *(_cell(summary, key, form) for summary in summaries))
    return table


def _cell(summary: Summary, key: str, form: str) -> str:
    if key not in summary:
        return ""
    error = summary["standard_errors"].get(key)
    spread = "" if error is None else f" ± {format(error, form)}"
    return f"{format(summary[key], form)}{spread}"
