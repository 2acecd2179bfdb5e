"""`turnstile demo`: on a running broker, or on a local installation that it starts."""

from __future__ import annotations

import argparse
from dataclasses import replace

from streams.cli.local import local_stack, stopped_by_signals
from streams.cli.output import Exit, note, show
from streams.config import Config
from streams.demo.entry import check_demo, run_demo
from streams.demo.table import Summary

_WORKERS = 2


def demo(options: argparse.Namespace, config: Config) -> int:
    """Run the scenarios; with --json, standard output has one JSON object for each of them."""
    check_demo(options.kind, options.data, options.out)  # before anything is started
    if options.kafka:
        summaries = _run(options, config)
    else:
        workers = options.workers or _WORKERS
        with stopped_by_signals(), local_stack(config, workers, None) as stack:
            here = replace(config, kafka=stack.kafka, redis=stack.redis)
            summaries = _run(options, here)
    if options.json:
        for summary in summaries:
            show(summary, as_json=True)
    return Exit.OK


def _run(options: argparse.Namespace, config: Config) -> list[Summary]:
    echo = _note_lines if options.json else None
    return run_demo(options.kind, config, options.data, options.out, seeds=options.seeds, echo=echo)


def _note_lines(thing: object) -> None:
    """Show lines of text on standard error, and no tables: the JSON objects have their figures."""
    if isinstance(thing, str):
        note(thing)
