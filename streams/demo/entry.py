"""Runs the demos against a service, shows their progress, writes their plots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias
from uuid import uuid4

from streams.config import Config
from streams.demo.errors import DemoError, demo_extra
from streams.demo.images import IMAGES_FILE, load_digits, load_mnist
from streams.demo.monitoring import CDNOW, MonitoringResult, monitor_daily
from streams.demo.plots import plot_monitoring, plot_training
from streams.demo.purchases import PURCHASES_FILE, load_purchases
from streams.demo.table import Seen, summary_of_monitoring, summary_of_training, table_of
from streams.demo.training import DIGITS, MNIST, Progress, TrainingResult, train_privately
from streams.demo.watching import Watcher
from streams.sdk.client import Turnstile

Kind: TypeAlias = Literal["mnist", "cdnow", "all"]
Echo: TypeAlias = Callable[[object], None]
"""Shows a line of text or a rich table."""

_PATIENCE = 20.0

_NO_PURCHASES = (
    f"cdnow: skipped, because no package that is kept up ships its data: give --data with "
    f"{PURCHASES_FILE} (the wheel of Lifetimes 0.11.3 has it: "
    "pip download --no-deps Lifetimes==0.11.3)"
)


@dataclass
class DemoReport:
    """What the demos found.

    Attributes:
        training: of the demo ``mnist``, if it ran.
        monitoring: of the demo ``cdnow``, if it ran.
        summaries: the same as numbers for programs, one per demo that ran.
        plots: the files that were written.
        skipped: why a demo did not run.
    """

    training: TrainingResult | None = None
    monitoring: MonitoringResult | None = None
    summaries: list[dict[str, object]] = field(default_factory=list)
    plots: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def run_demo(
    kind: Kind,
    kafka: str | Config,
    data: Path | None = None,
    out: Path = Path("out"),
    *,
    seed: int = 1,
    echo: Echo | None = None,
) -> DemoReport:
    """Run one demo or both against a running service.

    Args:
        kind: "mnist" trains a classifier privately, "cdnow" answers daily queries.
        kafka: bootstrap servers, or a whole configuration.
        data: a folder with the files of MNIST or CDNOW, or a file; without it, scikit-learn's
            digits, and no CDNOW.
        out: the folder for the plots.
        seed: of the noise, so that a demo gives the same figures again.
        echo: shows text and the final table; by default on the terminal.

    Raises:
        DemoError: no such data, or a package of the extra ``demo`` is missing.
        TurnstileError: the service failed.
    """
    with demo_extra():
        # Found out now, not after a minute of training.
        import matplotlib  # noqa: F401
        import sklearn  # noqa: F401
        from rich.console import Console
    if data is not None and not data.exists():
        raise DemoError(f"there is no {data}: give --data a folder or a file")
    show = Console().print if echo is None else echo
    report = DemoReport()
    config = kafka if isinstance(kafka, Config) else Config.load(kafka=kafka)
    with Turnstile(config=config) as turnstile:
        if kind in ("mnist", "all"):
            _run_training(turnstile, data, kind, seed, report)
            assert report.training is not None
            report.plots += plot_training(report.training, out)
        if kind in ("cdnow", "all"):
            _run_monitoring(turnstile, data, kind, seed, report)
            if report.monitoring is not None:
                report.plots += plot_monitoring(report.monitoring, out)
    if report.summaries:
        show(table_of(report.summaries))
    for line in report.skipped:
        show(line)
    for path in report.plots:
        show(f"wrote {path}")
    return report


def _run_training(
    turnstile: Turnstile, data: Path | None, kind: Kind, seed: int, report: DemoReport
) -> None:
    file = _find(data, IMAGES_FILE, required=kind == "mnist")
    images = load_digits() if file is None else load_mnist(file.parent)
    settings = DIGITS if file is None else MNIST
    dataset = _fresh_name(images.name.lower())
    turnstile.create_dataset(dataset, measure="zcdp", budget=settings.rho, on_exhaustion="clip")
    with (
        Watcher(turnstile, dataset) as watcher,
        _progress_bar(f"training on {images.name}") as progress,
    ):
        run = turnstile.run(dataset, "training")
        result = train_privately(run, images, settings, seed=seed, progress=progress)
        watcher.wait_for_halts(int(result.trace.halted.sum()), _PATIENCE)
    seen = Seen(dataset, watcher.halts, watcher.checkpoints)
    report.training = result
    report.summaries.append(summary_of_training(result, seen))


def _run_monitoring(
    turnstile: Turnstile, data: Path | None, kind: Kind, seed: int, report: DemoReport
) -> None:
    file = _find(data, PURCHASES_FILE, required=kind == "cdnow")
    if file is None:
        report.skipped.append(_NO_PURCHASES)
        return
    purchases = load_purchases(file)
    dataset = _fresh_name("cdnow")
    turnstile.create_dataset(dataset, measure="zcdp", budget=CDNOW.rho)
    with (
        Watcher(turnstile, dataset) as watcher,
        _progress_bar("daily buyers of CDNOW") as progress,
    ):
        run = turnstile.run(dataset, "daily")
        result = monitor_daily(run, purchases, CDNOW, seed=seed, progress=progress)
        watcher.wait_for_halts(int((result.buyers - result.admitted).sum()), _PATIENCE)
    seen = Seen(dataset, watcher.halts, watcher.checkpoints)
    report.monitoring = result
    report.summaries.append(summary_of_monitoring(result, seen))


def _find(data: Path | None, name: str, *, required: bool) -> Path | None:
    """The file of this name that ``data`` is or holds.

    Raises:
        DemoError: it is required, data was given, and there is none.
    """
    if data is None:
        return None
    files = [data] if data.is_file() else sorted(data.rglob(name))
    found = [file for file in files if file.name == name]
    if required and not found:
        raise DemoError(f"there is no {name} in {data}")
    return found[0] if found else None


def _fresh_name(data: str) -> str:
    """A dataset of its own for every demo: the budgets of the last one are spent."""
    return f"demo-{data}-{uuid4().hex[:8]}"


@contextmanager
def _progress_bar(words: str) -> Iterator[Progress]:
    """A bar on standard error, so that standard output stays clean."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(words), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(words)
        yield lambda done, total: bar.update(task, completed=done, total=total)
