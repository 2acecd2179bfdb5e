"""Run the demo on a service, and show its table and its plot."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias
from uuid import uuid4

from streams.answerer.kafka_journal import KafkaJournal
from streams.config import Config
from streams.demo.demo_error import DemoError, demo_extra
from streams.demo.plots import plot_revenue
from streams.demo.purchases import (
    PURCHASES_FILE,
    Purchases,
    load_purchases,
    simulated_purchases,
)
from streams.demo.revenue import Progress, answer_revenue
from streams.demo.revenue_summary import Summary, show_summary, summary_of
from streams.kafka.answer_topics import ensure_answer_topics
from streams.sdk.client import Turnstile

Echo: TypeAlias = Callable[[object], None]
"""Shows a line of text or a rich table."""

_SIMULATED: Final = (
    "The shop is simulated by models that were fitted to CDNOW. For CDNOW itself, give\n"
    f"--data a folder with {PURCHASES_FILE}; the wheel of Lifetimes 0.11.3 contains it:\n"
    "pip download --no-deps Lifetimes==0.11.3"
)


def check_demo(data: Path | None, out: Path) -> None:
    """Check the packages, the data and the output folder before anything is started.

    Raises:
        DemoError: a package of the extra ``demo`` is missing, ``data`` does not contain the
            purchases, or ``out`` cannot be written.
    """
    with demo_extra():
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
    if data is not None:
        _find_purchases(data)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"the plot cannot be written: {error}; give --out a folder") from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise DemoError(f"the plot cannot be written to {out}; give --out another folder")


def run_demo(
    config: Config,
    data: Path | None = None,
    out: Path = Path("out"),
    *,
    seeds: int = 5,
    echo: Echo | None = None,
) -> Summary:
    """Answer the revenue of every day on a running service, and return the figures.

    Args:
        config: of the service.
        data: a folder that contains the CDNOW purchases, or their file; None for a simulated shop.
        out: the folder for the plot, the purchases and the file of queries.
        seeds: the number of noise seeds.
        echo: shows text and tables; by default on the terminal.

    Raises:
        DemoError: see ``check_demo``.
        TurnstileError: the service failed.
    """
    check_demo(data, out)
    from rich.console import Console

    show = echo or Console(highlight=False, soft_wrap=True).print
    purchases = _purchases(data)
    ensure_answer_topics(config)
    with (
        Turnstile(config=config) as turnstile,
        _progress_bar("Answering the revenue of every day", purchases.days) as progress,
    ):
        result = answer_revenue(
            turnstile,
            f"demo-revenue-{uuid4().hex[:8]}",  # an earlier demo has spent its budgets
            lambda dataset: KafkaJournal(config, dataset),
            purchases,
            out,
            seeds=seeds,
            progress=progress,
        )
    summary = {**summary_of(result), "plot": str(plot_revenue(result, out))}
    for part in show_summary(summary):
        show(part)
    show(f"Plot: {summary['plot']}")
    show(f"Input of the service: {result.events}, {result.queries}")
    if data is None:
        show(_SIMULATED)
    return summary


def _purchases(data: Path | None) -> Purchases:
    return simulated_purchases() if data is None else load_purchases(_find_purchases(data))


def _find_purchases(data: Path) -> Path:
    """Return the file of purchases that ``data`` is or contains.

    Raises:
        DemoError: there is none.
    """
    if data.is_file():
        return data
    found = sorted(data.rglob(PURCHASES_FILE))
    if not found:
        raise DemoError(f"{data} contains no {PURCHASES_FILE}; give --data a folder that does")
    return found[0]


@contextmanager
def _progress_bar(label: str, steps: int) -> Iterator[Progress]:
    """Show a progress bar on standard error, so that standard output stays clean."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=steps)
        yield lambda: bar.advance(task)
