"""`turnstile rejects`: what was refused, why, when, from which run, and the record itself."""

from __future__ import annotations

import argparse

from streams.cli.output import Exit, note, show
from streams.config import Config
from streams.ledger.outputs import Channel
from streams.operations.rejected import readable
from streams.sdk.followers import Reading, distinct_rejects
from streams.sdk.kafka_connection import read_topic


def rejects(options: argparse.Namespace, config: Config) -> int:
    """Rejects, from the first that Kafka still has."""
    records = read_topic(config, Channel.REJECTS, Reading("earliest", options.follow))
    found = False
    for written, rejected in distinct_rejects(records):
        if options.dataset in (None, rejected.dataset) and options.reason in (
            None,
            rejected.reason,
        ):
            found = True
            show(readable(written, rejected), options.json)
    if options.dataset is not None and not found:  # what is refused may name no dataset that exists
        note(f"turnstile: nothing of a dataset {options.dataset!r} was refused")
    return Exit.OK
