"""`turnstile move`: a dataset goes to another number of partitions, with all that was spent."""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import replace
from typing import Any

from streams.cli.output import Exit, note, say, show, show_table
from streams.config import Config
from streams.offline.mover import Moved, compare, plan
from streams.offline.mover import move as move_dataset
from streams.offline.moves import Unmovable, digest_of
from streams.offline.receipts import UnusableReceipt, new_receipt, signed, write
from streams.offline.service import KafkaArchive
from streams.sdk.kafka_connection import KafkaConnection
from streams.sdk.principals import signer_of


def move(options: argparse.Namespace, config: Config) -> int:
    """Move it, say what would be moved, or compare what was moved with what has come."""
    if options.key and not options.receipt:
        raise UnusableReceipt("--key signs a receipt: give --receipt FILE as well")
    there = replace(config, prefix=options.to)
    signer = signer_of(config.principal, config.request_key)
    old, new = KafkaArchive(config), KafkaArchive(there)
    try:
        if options.dry_run:
            moved, what = plan(old, new, options.dataset, signer), "would move"
        elif options.check:
            moved, what = compare(old, new, options.dataset), "moved"
        else:
            with (
                closing(KafkaConnection(config)) as old_service,
                closing(KafkaConnection(there)) as new_service,
            ):
                old_service.signer = new_service.signer = signer
                moved = move_dataset(
                    old,
                    new,
                    old_service,
                    new_service,
                    options.dataset,
                    tell=lambda said: note(f"turnstile: {said}"),
                )
            what = "moved"
    except Unmovable as unmovable:
        note(f"turnstile: {unmovable}")
        return Exit.REFUSED
    _show(moved, what, options, old.partitions, new.partitions)
    if options.receipt and not options.dry_run:
        _write_receipt(moved, options, config, old)
    return Exit.OK


def _show(moved: Moved, what: str, options: argparse.Namespace, before: int, after: int) -> None:
    rows = [
        {
            "dataset": policy.dataset,
            "users": moved.leaving.users[policy.dataset],
            "smallest_partition": min(moved.landing.users(policy.dataset)),
            "largest_partition": max(moved.landing.users(policy.dataset)),
            "closed": policy.dataset in moved.leaving.closed,
        }
        for policy in moved.leaving.policies
    ]
    summary: dict[str, Any] = {
        "dataset": options.dataset,
        what.replace(" ", "_"): True,
        "to": options.to,
        "partitions": {"before": before, "after": after},
        "forgotten": moved.leaving.forgotten,
        "records_sent": moved.sent,
    }
    if options.json:
        for row in rows:
            show(row, as_json=True)
        show(summary, as_json=True)
        return
    names = [name.replace("_", " ") for name in rows[0]]
    show_table(names, [list(row.values()) for row in rows], words={"dataset"})
    said = {
        "would move": "Nothing was changed. This is what would move",
        "moved": "All of it is there: what was spent in the old log is spent in the new one",
    }[what]
    say(f"{said}, from {before} to {after} partitions.")
    if options.dataset in moved.leaving.closed:
        say(f"{options.dataset} is closed, and stays so there: nothing is charged to it.")
    elif what == "moved":
        say(
            f"Whoever charges {options.dataset} goes on with TURNSTILE_PREFIX={options.to}; runs "
            "begin anew there."
        )


def _write_receipt(
    moved: Moved, options: argparse.Namespace, config: Config, old: KafkaArchive
) -> None:
    if digest_of(moved.heads) != moved.leaving.origin.heads:
        raise UnusableReceipt(
            "the old log was trimmed beyond the records that close the dataset, so that a receipt "
            "would not be the one that the new log names"
        )
    receipt = new_receipt(config.prefix, old.topic, moved.heads, moved.policies)
    write(signed(receipt, options.key) if options.key else receipt, options.receipt)
    note(f"turnstile: the receipt of the old log is in {options.receipt}")
