"""`turnstile runs`: how far each run is, and which of them were interrupted."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from streams.cli.output import Exit, note, say, show, show_table
from streams.cli.presence import is_known_absent, no_dataset
from streams.config import Config
from streams.operations.runs import RunStatus, read_runs

_COLUMNS = ("dataset", "run", "state", "step", "attempt", "users", "halted")
_WORDS = ("dataset", "run", "state")


def runs(options: argparse.Namespace, config: Config) -> int:
    """Every run, the open ones first."""
    found, besides = read_runs(config)
    found = [run for run in found if options.dataset in (None, run.dataset)]
    if options.dataset is not None and not found and is_known_absent(options.dataset, config):
        return no_dataset(options.dataset)
    if options.json:
        for run in found:
            show(asdict(run), True)
    elif found:
        show_table(_COLUMNS, [_row(run) for run in found], _WORDS)
        for run in found:
            if run.state == "interrupted":
                say(f"\n{run.dataset}/{run.run} was interrupted: {_what(run)}")
    elif options.dataset is not None:
        what = "no run is listed" if besides else "there are no runs"
        note(f"turnstile: {what} of dataset {options.dataset!r}")
    else:
        note("turnstile: there are no runs" if not besides else "turnstile: no run is open")
    if besides:
        note(f"turnstile: {besides:,} more runs are closed, and not listed")
    return Exit.OK


def _row(run: RunStatus) -> list[object]:
    return [
        run.dataset,
        run.run,
        run.state,
        None if run.step < 0 else run.step,
        run.attempt,
        run.users,
        run.halted,
    ]


def _what(run: RunStatus) -> str:
    if run.charged > run.step:
        return (
            f"step {run.charged} is decided in some of the partitions only. Open the run again and "
            "charge the same, which completes it, or give it up: it stays charged"
        )
    return "opening or closing it reached some of the partitions only. Doing it again completes it"
