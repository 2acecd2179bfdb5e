"""`turnstile rejects`: refused requests: why, when, by which partitions, and the record itself."""

from __future__ import annotations

import argparse

from streams.cli.output import Exit, note, show
from streams.config import Config
from streams.ledger.outputs import Channel
from streams.operations.rejected import Refusals, by_request, readable
from streams.sdk.followers import Reading, distinct_rejects
from streams.sdk.kafka_connection import read_topic


def rejects(options: argparse.Namespace, config: Config) -> int:
    """Show each refused request once, from the first that Kafka still has.

    With --follow each refusal is a line of its own: the other partitions may answer later.
    """

    def read() -> Refusals:
        records = read_topic(config, Channel.REJECTS, Reading("earliest", options.follow))
        for written, rejected in distinct_rejects(records):
            if options.dataset in (None, rejected.dataset) and options.reason in (
                None,
                rejected.reason,
            ):
                yield written, rejected

    found = False
    refused = (
        ((written, rejected, [rejected.partition]) for written, rejected in read())
        if options.follow
        else by_request(read)
    )
    for written, rejected, partitions in refused:
        found = True
        shown = readable(written, rejected)
        record, packed = shown.pop("record"), shown.pop("bytes")
        counted = {"partitions": sorted(set(partitions)), "count": len(partitions)}
        show({**shown, **counted, "record": record, "bytes": packed}, options.json)
    if options.dataset is not None and not found:  # a refused request may name any dataset
        note(f"turnstile: nothing of a dataset {options.dataset!r} was refused")
    return Exit.OK
