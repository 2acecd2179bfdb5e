"""`turnstile demo`: on a broker that is there, or on an installation of its own."""

from __future__ import annotations

import argparse
from dataclasses import replace

from streams.cli.local import local_stack, stopped_by_signals
from streams.cli.output import Exit, note, show
from streams.config import Config
from streams.demo.entry import DemoReport, check_demo, run_demo

_WORKERS = 2


def demo(options: argparse.Namespace, config: Config) -> int:
    """Run the demos; with --json their figures are one object each, and all else is notes."""
    check_demo(options.kind, options.data, options.out)  # before anything is started
    if options.kafka:
        report = _run(options, config)
    else:
        workers = options.workers or _WORKERS
        with stopped_by_signals(), local_stack(config, workers, None) as stack:
            here = replace(config, kafka=stack.kafka, redis=stack.redis)
            report = _run(options, here)
    if options.json:
        for summary in report.summaries:
            show(summary, as_json=True)
    return Exit.OK


def _run(options: argparse.Namespace, config: Config) -> DemoReport:
    echo = _note_lines if options.json else None
    return run_demo(options.kind, config, options.data, options.out, seeds=options.seeds, echo=echo)


def _note_lines(thing: object) -> None:
    """What is a line of text; the table says what the objects say."""
    if isinstance(thing, str):
        note(thing)
