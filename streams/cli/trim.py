"""``turnstile trim``: deletes what snapshots cover from the log."""

from __future__ import annotations

import argparse

from streams.cli.output import Exit, show
from streams.config import Config
from streams.operations.trimming import plan_trims, trim


def trim_log(options: argparse.Namespace, config: Config) -> int:
    """Say what can be deleted of each partition, and delete it unless it is asked not to."""
    is_wrong = False
    for planned in plan_trims(config):
        is_wrong |= planned.is_wrong
        if planned.records and not options.dry_run:
            trim(config, planned)
        show(
            {
                "partition": planned.partition,
                "log_start": planned.start,
                "log_end": planned.end,
                "snapshot": planned.snapshot,
                "would_delete" if options.dry_run else "deleted": planned.records,
                "log_begins_at": planned.start if options.dry_run else planned.before,
                "why_not_more": planned.why,
            },
            options.json,
        )
    return Exit.REFUSED if is_wrong else Exit.OK
