"""The figures of the demo: as an object for programs, and as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from streams.demo.demo_error import demo_extra
from streams.demo.means import mean_and_error, with_error
from streams.demo.revenue import RevenueResult
from streams.demo.revenue_plans import DELTA, EPSILON

if TYPE_CHECKING:
    from rich.table import Table

Summary: TypeAlias = dict[str, Any]

_COLUMNS: Final = {
    "cap": ("cap", "${:g}"),
    "active_days": ("active days", "{:d}"),
    "noise_stddev": ("noise", "{:,.4g}"),
    "root_mean_square_error": ("typical error (RMSE)", "${:,.0f}"),
}
"""The header and the format of each figure in a row of results."""


def summary_of(result: RevenueResult) -> Summary:
    """Return the figures; the difference is paired by noise seed."""
    purchases, less = result.purchases, result.less_than_bounding
    return {
        "title": f"Revenue per day of {purchases.name}",
        "data": purchases.name,
        "users": purchases.users,
        "steps": purchases.days,
        "revenue_per_day": float(purchases.totals.mean()),
        "epsilon": EPSILON,
        "delta": DELTA,
        "seeds": len(result.answers["individual"].errors),
        "results": [
            {
                "accounting": accounting,
                "cap": answers.plan.cap,
                "active_days": answers.plan.active_days,
                "noise_stddev": answers.noise_stddev,
                **mean_and_error("root_mean_square_error", answers.errors),
            }
            for accounting, answers in result.answers.items()
        ],
        **mean_and_error("individual_less_contribution_bounding", less),
        "finding": f"With individual accounting:\n{result.gain}.\n"
        "Individual accounting less contribution bounding, paired by noise seed:\n"
        f"{with_error('{:+,.1f}', less)} dollars.",
        "service": result.charged,
    }


def show_summary(summary: Summary) -> Iterator[Table | str]:
    """Yield the table of results and the sentences below it."""
    with demo_extra():
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
    table = Table(
        title="\n{title}: {users:,} users, {steps} steps\nIn every row, each user has epsilon "
        "{epsilon:g}, delta {delta:g}".format_map(summary),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("accounting")
    for header, _ in _COLUMNS.values():
        table.add_column(header, justify="right")
    for row in summary["results"]:
        cells = (_cell(row, key, form) for key, (_, form) in _COLUMNS.items())
        bold = "bold" if row["accounting"] == "individual" else None
        table.add_row(row["accounting"], *cells, style=bold)
    yield table
    yield summary["finding"]
    yield (
        "The service admitted {admitted:,} contributions in {seconds:.0f} s, and halted {halted:,}"
        " of\nusers with an exhausted budget. Kafka returned {halt_events:,} HALT events and "
        "{odometer_records:,}\nodometer records."
    ).format_map(summary["service"])


def _cell(row: Summary, key: str, form: str) -> str:
    error = row.get(f"{key}_standard_error")
    return form.format(row[key]) + ("" if error is None else f" ± {form.format(error)}")
