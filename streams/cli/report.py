"""`turnstile report`: what the steps of every user lose, to a file or to the terminal."""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from accounting import InvalidInput
from streams.cli.output import Exit, UnusableInput, as_cell, note, say, show, show_table
from streams.cli.presence import no_dataset
from streams.config import Config
from streams.replay.aggregates import NoAggregate, aggregate, shares_of
from streams.replay.fold import Compared, in_words, unproven
from streams.replay.report import Losses, Report, ReportRefused
from streams.replay.report import report as report_of
from streams.replay.service import KafkaArchive
from streams.sdk.client import Turnstile

COLUMNS = (
    "dataset",
    "user",
    "id_kind",
    "measure",
    "steps",
    "order",
    "spent",
    "remaining",
    "epsilon",
    "any_time_epsilon",
    "delta",
    "method",
)
_PRIVATE = 0o600
_RUN = "aggregates"
_QUANTILES = (0.1, 0.5, 0.9)
_MEANING = (
    "epsilon bounds the loss of a fixed schedule of the same steps. It is no guarantee if steps, "
    "norms or the end of a run followed from released outputs; any_time_epsilon is one."
)


def report(options: argparse.Namespace, config: Config) -> int:
    """Compute all of it, and only then write; or release numbers of all users together."""
    if options.aggregate:
        return _release(options, config)
    if options.rho is not None or options.quantiles is not None:
        raise UnusableInput("--rho and --quantiles are of --aggregate: add it")
    output: Path | None = options.output
    if output is not None:
        _check_output(output)
    try:
        reported = report_of(
            KafkaArchive(config),
            delta=options.delta,
            method=options.method,
            dataset=options.dataset,
            progress=_show_progress if sys.stderr.isatty() else lambda *_: None,
        )
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
    except ReportRefused as refused:
        note(f"turnstile: {refused}")
        return Exit.REFUSED
    _note(reported.compared)
    losses = reported.losses
    if options.dataset is not None and not losses:
        return no_dataset(options.dataset)
    given = {"delta": options.delta, "method": options.method}
    if erased := sum(part.erased for part in losses):
        note(f"{erased} accounts have no row: their users were erased")
    note(_MEANING)
    if output is None:
        for part in losses:
            compared = {"compared": reported.compared[part.partition].shown} if options.json else {}
            for row in _rows([part], given):
                show({**row, **compared}, options.json)
        return Exit.OK
    try:
        _write(losses, given, output)
    except OSError as error:
        raise UnusableInput(f"cannot write {output}: {error}") from error
    _summarise(reported, output, options.json)
    return Exit.OK


def _release(options: argparse.Namespace, config: Config) -> int:
    if options.output or options.dataset is None or options.rho is None:
        raise UnusableInput(
            "--aggregate releases numbers of all users of one --dataset together and charges them "
            "for it: give --dataset and --rho, and no --output"
        )
    try:
        shares = shares_of(KafkaArchive(config), options.dataset)
        _note(shares.compared)
        with Turnstile(config=config) as turnstile:
            run = turnstile.run(options.dataset, _RUN, take_over=options.take_over)
            fractions = options.quantiles or list(_QUANTILES)
            released = aggregate(run, shares, rho=options.rho, quantiles=fractions)
    except (NoAggregate, InvalidInput) as problem:
        raise UnusableInput(str(problem)) from problem
    mean, quantiles = released.mean, released.quantiles
    shown = {
        "dataset": options.dataset,
        "mean_share_spent": mean.estimate,
        "standard_error": mean.standard_error,
        "users": mean.count,
        "users_standard_error": mean.count_standard_error,
        "quantiles": quantiles.quantiles.tolist(),
        "shares_spent": quantiles.estimates.tolist(),
        "standard_errors": quantiles.standard_errors.tolist(),
        "charged_rho_at_most": mean.cost.rho + quantiles.cost.rho,
        "compared": [each.shown for each in shares.compared],
    }
    if options.json:
        show(shown, as_json=True)
        return Exit.OK
    say(
        f"Users of {options.dataset} who could pay for this have spent {mean.estimate:.1%} of "
        f"their budgets on average, give or take {mean.standard_error:.1%}. They are about "
        f"{mean.count:,.0f}, give or take {mean.count_standard_error:,.0f}; who has nothing left "
        "is not among them."
    )
    columns = (shown["quantiles"], shown["shares_spent"], shown["standard_errors"])
    show_table(
        ("of users", "have spent at most", "give or take"),
        [[f"{part:.1%}" for part in row] for row in zip(*columns, strict=True)],
    )
    say(
        "All of this may be published. Every user was charged rho "
        f"{shown['charged_rho_at_most']:.6g} at most for it, by two steps of run {_RUN}."
    )
    return Exit.OK


def _note(compared: Sequence[Compared]) -> None:
    note(in_words(compared))
    for why in unproven(compared):
        note(f"turnstile: {why}")


def _show_progress(partition: int, records: int) -> None:
    sys.stderr.write(f"\rpartition {partition}: {records:,} records\x1b[K")
    sys.stderr.flush()


def _rows(losses: Sequence[Losses], given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in losses:
        for row, user in enumerate(part.users):
            order, any_time = float(part.order[row]), float(part.any_time_epsilon[row])
            yield {
                "dataset": part.dataset,
                "user": user,
                "id_kind": _kind(user),
                "measure": part.measure,
                "steps": int(part.steps[row]),
                "order": None if np.isnan(order) else order,
                "spent": float(part.spent[row]),
                "remaining": float(part.remaining[row]),
                "epsilon": float(part.epsilon[row]),
                "any_time_epsilon": None if np.isnan(any_time) else any_time,
                **given,
            }


def _kind(user: object) -> str:
    return "string" if isinstance(user, str) else "integer"


def _check_output(path: Path) -> None:
    """Whether it can be written, before anything is computed."""
    if path.suffix not in (".csv", ".parquet"):
        raise UnusableInput(f"{path}: the name of a report ends with .csv or .parquet")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UnusableInput(
            "a Parquet file needs the package pyarrow: pip install 'dp-turnstile[report]', or give "
            "a name that ends with .csv"
        )
    if not path.parent.is_dir():
        raise UnusableInput(f"{path}: there is no folder {path.parent}")


def _write(losses: Sequence[Losses], given: dict[str, Any], path: Path) -> None:
    """Write all of it under another name first: a report is whole, or not there.

    It is for nobody's eyes but its users': only who runs this may read the file.
    """
    draft = path.with_name(f".{path.name}.draft")
    with suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    try:
        if path.suffix == ".csv":
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                _write_csv(losses, given, file)
        else:
            os.close(descriptor)
            _write_parquet(losses, given, draft)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _write_csv(losses: Sequence[Losses], given: dict[str, Any], file: TextIO) -> None:
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    for row in _rows(losses, given):
        writer.writerow({name: as_cell(value) for name, value in row.items()})


def _write_parquet(losses: Sequence[Losses], given: dict[str, Any], path: Path) -> None:
    import pyarrow as arrow
    from pyarrow.parquet import ParquetWriter

    kinds = {"steps": arrow.int64()} | dict.fromkeys(
        ("order", "spent", "remaining", "epsilon", "any_time_epsilon", "delta"), arrow.float64()
    )
    schema = arrow.schema([(name, kinds.get(name, arrow.string())) for name in COLUMNS])
    with ParquetWriter(path, schema) as writer:
        for part in losses:
            users = len(part.users)
            columns = {
                "dataset": [part.dataset] * users,
                "user": [str(user) for user in part.users],
                "id_kind": [_kind(user) for user in part.users],
                "measure": [part.measure] * users,
                "steps": part.steps,
                "order": arrow.array(part.order, from_pandas=True),  # NaN is nothing
                "spent": part.spent,
                "remaining": part.remaining,
                "epsilon": part.epsilon,
                "any_time_epsilon": arrow.array(part.any_time_epsilon, from_pandas=True),
                **{name: [value] * users for name, value in given.items()},
            }
            writer.write_table(arrow.table(columns, schema=schema))


def _summarise(reported: Report, path: Path, as_json: bool) -> None:
    """How much there is, and nothing of what is in it."""
    users: dict[str, int] = {}
    for part in reported.losses:
        users[part.dataset] = users.get(part.dataset, 0) + len(part.users)
    compared = {"compared": [each.shown for each in reported.compared]} if as_json else {}
    for name, count in sorted(users.items()):
        show({"dataset": name, "users": count, "file": str(path), **compared}, as_json)
