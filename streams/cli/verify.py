"""`turnstile verify`: whether all that was kept and published is what the log gives."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from streams.cli.output import Exit, note, plain, say, show, show_table
from streams.config import Config
from streams.replay.findings import LogFinding
from streams.replay.receipts import (
    Receipt,
    UnusableReceipt,
    check_signature,
    new_receipt,
    read,
    signed,
    write,
)
from streams.replay.results import PartitionProgress, PartitionVerified, Verified
from streams.replay.service import KafkaArchive, RedisStates
from streams.replay.verification import verify as compare

_COLUMNS = {
    "partition": "partition",
    "to": "log to",
    "state_at": "state at",
    "snapshot_at": "snapshot at",
    "users": "users",
    "answers": "answers",
    "rejects": "rejects",
    "odometers": "odometers",
    "priced": "priced",
    "findings": "findings",
}
_INDENT = " " * 10


def verify(options: argparse.Namespace, config: Config) -> int:
    """Compare; write a receipt, if one is wanted and everything fits."""
    against = _earlier(options)
    with ExitStack() as opened:
        archive = KafkaArchive(config)
        states = opened.enter_context(RedisStates(config))
        if against is not None:
            _check_same_log(against, archive, config)
        progress: Callable[[PartitionProgress], None] = (
            _show_progress if sys.stderr.isatty() else lambda _: None
        )
        verified = compare(archive, states, against=against, progress=progress)
    for finding in verified.findings:
        _show_finding(finding, options.json)
    _show_verdict(verified, against, options.json)
    if not verified.fits:
        if options.receipt:
            note(f"turnstile: no receipt was written to {options.receipt}: see what is above")
        return Exit.REFUSED
    if options.receipt:
        receipt = new_receipt(
            config.prefix, verified.topic, verified.heads, verified.policies_digest()
        )
        write(signed(receipt, options.key) if options.key else receipt, options.receipt)
        note(f"turnstile: the receipt is in {options.receipt}")
    return Exit.OK


def _earlier(options: argparse.Namespace) -> Receipt | None:
    """The receipt to compare with, its signature checked if there is a key for it."""
    if options.key and not options.receipt:
        raise UnusableReceipt("--key signs a receipt: give --receipt FILE as well")
    if options.public_key and not options.against:
        raise UnusableReceipt("--public-key is for a receipt: give --against RECEIPT as well")
    if options.against is None:
        return None
    receipt = read(options.against)
    if options.public_key:
        check_signature(receipt, options.public_key)
    elif receipt.signature is not None:
        note("turnstile: the receipt is signed; who signed it is not checked without --public-key")
    return receipt


def _check_same_log(receipt: Receipt, archive: KafkaArchive, config: Config) -> None:
    for name, ours, theirs in (
        ("prefix", config.prefix, receipt.prefix),
        ("topic id", archive.topic.hex(), receipt.topic),
        ("number of partitions", archive.partitions, receipt.partitions),
    ):
        if ours != theirs:
            raise UnusableReceipt(
                f"the receipt is of another log: its {name} is {theirs!r}, and here it is {ours!r}"
            )
    missing = [p for p in range(archive.partitions) if receipt.head_of(p) is None]
    if missing:
        raise UnusableReceipt(f"the receipt says nothing of partitions {missing}")


def _show_progress(progress: PartitionProgress) -> None:
    speed = progress.records / max(progress.seconds, 1e-9)
    sys.stderr.write(
        f"\rpartition {progress.partition + 1} of {progress.partitions}: offset {progress.next:,} "
        f"of {progress.end:,}, {speed:,.0f} records/s\x1b[K"
        + ("\r\x1b[K" if progress.next >= progress.end else "")
    )
    sys.stderr.flush()


def _show_finding(finding: LogFinding, as_json: bool) -> None:
    if as_json:
        show({"finding": asdict(finding)}, as_json)
        return
    place = f"partition {finding.partition}"
    if finding.offset is not None:
        place += f", offset {finding.offset}"
    say(f"{finding.check.upper():8}  {place}: {plain(finding.problem)}")
    if finding.about:
        pairs = (f"{name} {plain(value)}" for name, value in finding.about.items())
        say(_INDENT + ", ".join(pairs))
    for name in ("expected", "found"):
        if (value := getattr(finding, name)) is not None:
            say(f"{_INDENT}{name:8}  {plain(value)}")


def _show_partition(part: PartitionVerified) -> dict[str, Any]:
    return {
        "partition": part.partition,
        "from": part.began,
        "to": part.next,
        "head": part.head.hex(),
        "records": part.records,
        "state_at": part.state_at,
        "snapshot_at": part.snapshot_at,
        "users": part.users,
        "answers": part.halts,
        "rejects": part.rejects,
        "odometers": part.odometers,
        "priced": part.priced,
        "signed": part.signed,
        "without_signature": part.bare,
        "in_outbox": part.awaited,
        "expired": part.expired,
        "findings": part.findings.counts.total(),
        "impossible": part.impossible,
        "seconds": round(part.seconds, 3),
    }


def _show_verdict(verified: Verified, against: Receipt | None, as_json: bool) -> None:
    parts = verified.partitions
    if as_json:
        for part in parts:
            show(_show_partition(part), as_json)
        summary = {
            "fits": verified.fits,
            "findings": verified.wrong,
            "records": sum(part.records for part in parts),
            "users": sum(part.users for part in parts),
            "seconds": round(sum(part.seconds for part in parts), 3),
            "continues_receipt_of": against.time if against and verified.fits else None,
        }
        show(summary, as_json)
        return
    rows = [[_show_partition(part)[name] for name in _COLUMNS] for part in parts]
    show_table(tuple(_COLUMNS.values()), rows)
    for part in parts:
        if part.began:
            say(
                f"partition {part.partition}: applied from the snapshot at {part.began} on, "
                "which is taken as it is: what came before is deleted"
            )
        for what in part.impossible:
            say(f"partition {part.partition}: not compared: {plain(what)}")
    say(_in_words(verified, against))


def _in_words(verified: Verified, against: Receipt | None) -> str:
    parts = verified.partitions
    records, users = (sum(getattr(part, name) for part in parts) for name in ("records", "users"))
    seconds = max(sum(part.seconds for part in parts), 1e-9)
    counted = (
        f"{records:,} records, {users:,} users, in {seconds:.1f} s "
        f"({records / seconds:,.0f} records/s)"
    )
    if verified.wrong:
        findings = "1 finding" if verified.wrong == 1 else f"{verified.wrong:,} findings"
        return f"It does not fit: {findings} in {counted}."
    if not verified.fits:
        return f"Nothing wrong was found, but not all could be compared: {counted}."
    notes = ""
    if against is not None:
        notes += f" The log continues that of the receipt of {against.time}."
    if awaited := sum(part.awaited for part in parts):
        notes += f" {awaited:,} outputs are not published yet, and are in the outbox."
    if signed := sum(part.signed for part in parts):
        notes += f" {signed:,} records have the signature of a trusted key."
    if bare := sum(part.bare for part in parts):
        notes += f" {bare:,} have none."
    if expired := sum(part.expired for part in parts):
        notes += f" {expired:,} answers are older than what their topics still have."
    return f"Everything fits: {counted}.{notes}"
