"""The commands that verify the log: verify, backup, statement and import."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from accounting import InvalidInput
from streams.cli.commands import command
from streams.cli.options import (
    AT_DELTA,
    CLIENT,
    FILE_OBSERVER,
    OF_DATASET,
    SIGNING_KEY,
    arg,
)
from streams.cli.printing import UnusableInput, note, plain, show, tell
from streams.cli.subjects import no_dataset
from streams.config import Config
from streams.failures import Exit
from streams.operations.statement import Statement, rounded_up, statement_of
from streams.records import Policy
from streams.replay.archive import Archive
from streams.replay.file import FileArchive
from streams.replay.findings import PartitionVerified, Verified
from streams.replay.log_replay import LogReplay
from streams.replay.move import move
from streams.replay.receipts import (
    Receipt,
    UnusableReceipt,
    check_signature,
    new_receipt,
    read,
    signed,
    write,
)
from streams.replay.verify import verify as verify_service

_VERIFIED = {
    "partition": "partition",
    "to": "replayed to offset",
    "state_at": "state compared at",
    "snapshot_at": "snapshot compared at",
    **{name: name for name in ("users", "answers", "rejects", "odometers")},
    "cost_tables": "cost tables",
    "findings": "findings",
}
_COUNTED = {
    "signed": "signed",
    "without_signature": "without signature",
    "in_outbox": "in outbox",
    "expired": "expired",
}
"""Columns that are shown only if a partition has such records."""


@command(
    "verify",
    FILE_OBSERVER,
    arg("--receipt FILE", "write a receipt of the log if everything fits"),
    SIGNING_KEY,
    arg("--against RECEIPT", "an earlier receipt, which the log must continue"),
    arg(
        "--public-key FILE",
        "the public key of that receipt's signer, as `turnstile keys new` prints it",
    ),
    lines=("mismatch", "verified_partition", "verdict"),
)
def verify(options: argparse.Namespace, config: Config) -> int:
    """Replay the log and compare it with all that was stored and published.

    It needs no worker, writes nothing to Kafka or Redis, and may run beside the service. Mismatches
    contain other people's data: they are for the operator. Exit code 0 only if everything was
    compared and fits, 1 otherwise.
    """
    against = _earlier_receipt(options)
    with opened(config) as archive:
        if against is not None:
            check_same_log(against, archive, config)
        verified = verify_service(archive, against=against, progress=show_progress)
    show("mismatch", verified.findings, options.json)
    _show_verdict(verified, against, options.json)
    if not verified.fits:
        if options.receipt:
            note(f"turnstile: no receipt was written to {options.receipt}: not everything fits")
        return Exit.REFUSED
    if options.receipt:
        write(receipt_of(verified, options.key, config), options.receipt)
        note(f"turnstile: the receipt is in {options.receipt}")
    return Exit.OK


@command(
    "backup",
    ("timeout", "config", "budgets"),
    arg("copy COPY", "the new file; its receipt is COPY.receipt.json"),
    SIGNING_KEY,
    lines=("mismatch", "verified_partition", "verdict"),
)
def backup(options: argparse.Namespace, config: Config) -> int:
    """Copy a budget file as of one moment, verify the copy, and write its receipt.

    Charges wait while the file is copied, and not while the copy is verified. If something does not
    fit, there is no receipt, and the exit code is 1. docs/operate/backup.md has the steps of a
    restore.
    """
    copy = str(options.copy)
    if not config.budgets:
        raise UnusableInput("backup copies a budget file: give --budgets FILE")
    with closing(FileArchive(config.budgets, config.timeout)) as file:
        file.file.copy(copy)
    options.receipt = Path(f"{copy}.receipt.json")
    options.against = options.public_key = None
    return verify(options, replace(config, budgets=copy))


@contextmanager
def opened(config: Config) -> Iterator[Archive]:
    """Open the service or the budget file in the settings."""
    if config.budgets:
        with closing(FileArchive(config.budgets, config.timeout)) as file:
            yield file
    else:
        from streams.replay.service import ServiceArchive

        yield ServiceArchive(config)


@command(
    "import",
    CLIENT,
    arg("budgets FILE", "the file"),
    arg("--instead-of LOG", "the log of an earlier import that failed, whose topics were deleted"),
    lines=("moved_partition", "moved_file"),
)
def import_file(options: argparse.Namespace, config: Config) -> int:
    """Move a budget file into a service that has no log yet.

    The service needs the number of partitions of the file, and no clients until the command has
    ended. The file then refuses every charge. Answers and their journal move to the topics of
    answerers: a file with answers needs the rights of the role answerer, others those of the role
    trainer. The command reads the log of the service and compares its hash chain with the file.
    If it is interrupted, run it again. Datasets with an access list then need `turnstile dataset
    access --copied-from` with the id that this command prints as from.
    """
    from streams.answerer.file_journal import copy_answers
    from streams.answerer.kafka_journal import KafkaJournal
    from streams.kafka.answer_topics import ensure_answer_topics
    from streams.replay.service import ServiceArchive, append

    path, instead_of = str(options.budgets), options.instead_of
    with closing(FileArchive(path, config.timeout, writable=True)) as file:
        service = ServiceArchive(config)
        if file.file.has_answers():
            ensure_answer_topics(config)  # it can be refused, so before anything is moved
        copy = partial(copy_answers, file.file, partial(KafkaJournal, config))
        other = instead_of and bytes.fromhex(instead_of)
        sender = partial(append, config)
        for part in move(file, service, sender, copy=copy, instead_of=other, tell=note):
            heads = {"file_head": part.file_head.hex(), "head": part.head.hex()}
            fields = {"partition": part.partition, "records": part.records, **heads}
            show("moved_partition", fields, options.json)
        logs = {"from": file.topic.hex(), "to": service.topic.hex()}
    show("moved_file", logs, options.json)
    return Exit.OK


def _earlier_receipt(options: argparse.Namespace) -> Receipt | None:
    """Return the receipt to compare with; check its signature if a key is given."""
    if options.key and not options.receipt:
        raise UnusableReceipt("--key signs a receipt: give --receipt FILE as well")
    if options.public_key and not options.against:
        raise UnusableReceipt("--public-key is for a receipt: give --against RECEIPT as well")
    if not options.against:
        return None
    receipt = read(options.against)
    if options.public_key:
        check_signature(receipt, options.public_key)
    elif receipt.signature is not None:
        note("turnstile: the signature of the receipt is not checked without --public-key")
    return receipt


def receipt_of(verified: Verified, key: Path | None, config: Config) -> Receipt:
    """Return the receipt of a verification, signed if there is a key."""
    policies = verified.policies_digest()
    receipt = new_receipt(config.prefix, verified.topic, verified.heads, policies)
    return signed(receipt, key) if key else receipt


def check_same_log(receipt: Receipt, archive: Archive, config: Config) -> None:
    """Check that a receipt belongs to the log in the settings.

    Raises:
        UnusableReceipt: it does not.
    """
    for name, ours, theirs in (
        ("prefix", config.prefix, receipt.prefix),
        ("topic id", archive.topic.hex(), receipt.topic),
        ("number of partitions", archive.partitions, receipt.partitions),
    ):
        if ours != theirs:
            raise UnusableReceipt(
                f"the receipt belongs to another log: its {name} is {theirs!r}, not {ours!r}"
            )
    missing = [p for p in range(archive.partitions) if receipt.head_of(p) is None]
    if missing:
        raise UnusableReceipt(f"the receipt lacks partitions {missing}")


def show_progress(replay: LogReplay) -> None:
    """Show on a terminal how far a replay is, and remove the line at its end."""
    if not sys.stderr.isatty():
        return
    at, end = replay.next, replay.extent.end
    text = f"partition {replay.ledger.state.partition}: offset {at:,} of {end:,}"
    sys.stderr.write(f"\r{text if at < end else ''}\x1b[K")
    sys.stderr.flush()


def _partition_fields(part: PartitionVerified) -> dict[str, Any]:
    names = (
        *("records", "state_at", "snapshot_at", "users", "answers", "rejects", "odometers"),
        *("cost_tables", "signed", "without_signature", "in_outbox", "expired", "impossible"),
    )
    extent = {"partition": part.partition, "from": part.began, "to": part.next}
    counts = {"findings": part.counts.total(), "seconds": round(part.seconds, 3)}
    fields = {name: getattr(part, name) for name in names}
    return {**extent, "head": part.head.hex(), **fields, **counts}


def _show_verdict(verified: Verified, against: Receipt | None, as_json: bool) -> None:
    parts = verified.partitions
    counted = {n: _COUNTED[n] for n in _COUNTED if any(getattr(part, n) for part in parts)}
    columns = _VERIFIED | counted
    show("verified_partition", map(_partition_fields, parts), as_json, columns)
    summary = {
        "fits": verified.fits,
        "findings": verified.wrong,
        "records": sum(part.records for part in parts),
        "users": sum(part.users for part in parts),
        "seconds": round(sum(part.seconds for part in parts), 3),
        "continues_receipt_of": against.time if against and verified.fits else None,
    }
    if as_json:
        show("verdict", summary, as_json)
        return
    for part in parts:
        if part.began:
            tell(
                f"partition {part.partition}: replayed from the snapshot at {part.began}, "
                "which is not verified: earlier records are deleted"
            )
        for what in part.impossible:
            tell(f"partition {part.partition}: not compared: {plain(what)}")
    verdict = "Everything fits"
    if not verified.fits:
        verdict = "Nothing wrong was found, but not everything could be compared"
    if verified.wrong:
        verdict = "Log and service differ"
    tell(
        verdict + ": {records:,} records, {users:,} users, in {seconds:.1f} s.".format_map(summary)
    )
    if against and verified.fits:
        tell(f"The log continues the one of the receipt from {against.time}.")


@command(
    "statement",
    FILE_OBSERVER,
    OF_DATASET,
    AT_DELTA,
    SIGNING_KEY,
    lines=("statement",),
)
def statement(options: argparse.Namespace, config: Config) -> int:
    """State the guarantee of a dataset for model cards and registries, backed by verify.

    The log is replayed and compared with all that was stored and published. If anything differs,
    nothing is stated, and the exit code is 1. The statement has the heads of the log's hash chain.
    It has no number of users, and may be published.
    """
    with opened(config) as archive:
        verified = verify_service(archive)
    if not verified.fits:
        note("turnstile: log and service differ: `turnstile verify` shows where")
        return Exit.REFUSED
    receipt, policies = receipt_of(verified, options.key, config), _policies(verified)
    if options.dataset not in policies:
        return no_dataset(options.dataset)
    try:
        stated = statement_of(_chain(policies, options.dataset), options.delta)
    except InvalidInput as problem:
        raise UnusableInput(str(problem)) from problem
    if options.json:
        fields = {**asdict(stated), "text": stated.text(), "registry": registry_fields(stated)}
        show("statement", {**fields, "receipt": msgspec.to_builtins(receipt)}, True)
        return Exit.OK
    for line in _lines_of(stated, receipt):
        tell(line)
    return Exit.OK


def _policies(verified: Verified) -> dict[str, Policy]:
    """Return the replayed policies.

    Raises:
        UnusableInput: the partitions have different ones.
    """
    first, *others = [part.policies for part in verified.partitions]
    if any(other != first for other in others):
        raise UnusableInput(
            "only some partitions have all datasets: repeat the creation or withdrawal that was "
            "interrupted"
        )
    return {name: msgspec.msgpack.decode(packed, type=Policy) for name, packed in first.items()}


def _chain(policies: Mapping[str, Policy], name: str) -> list[Policy]:
    """Return the policies of a dataset and of all that its charges draw on, the nearest first."""
    names = [name]
    for each in names:  # which grows
        policy = policies[each]
        above = policy.parents or ([policy.share_of] if policy.share_of else [])
        names += [outer for outer in above if outer not in names]
    return [policies[each] for each in names]


def registry_fields(stated: Statement) -> dict[str, Any]:
    """Return the fields of an entry in the OpenDP deployments registry that a policy decides."""
    rho = {"rho": stated.budget.amounts[0]} if stated.budget.unit == "rho" else {}
    delta = {"delta": stated.delta} if stated.delta else {}
    return {
        "dp_flavor": {
            "name": stated.budget.kind,
            "input_metric": f"symmetric distance of users: {stated.neighbours}",
            "bound_on_input_distance": 1,
            "unprotected_quantities": "; ".join(stated.not_covered),
        },
        "privacy_loss": {
            "privacy_unit": "User-level",
            "privacy_unit_description": stated.text(),
            "privacy_parameters": {"epsilon": stated.epsilon, **delta, **rho},
            "privacy_parameters_description": _amount(stated),
        },
        "model": {"model_name": "Central", "release_type": "Many releases"},
        "accounting": {"composition": "; ".join(stated.ensured)},
    }


def _amount(stated: Statement) -> str:
    budget = stated.budget
    if not budget.orders:
        return f"{budget.unit} {rounded_up(budget.amounts[0])} ({budget.kind})"
    which = "at one of the orders, each user its own" if budget.any_order else "at every order"
    return f"{budget.unit}, {len(budget.orders)} orders ({budget.kind}), {which}"


def _lines_of(stated: Statement, receipt: Receipt) -> Iterator[str]:
    """Yield the statement for people."""
    yield f"{stated.text()}\n"
    yield f"Budget: {_amount(stated)}, of dataset {plain(stated.budget.dataset)}."
    for other in stated.parents:
        if other != stated.budget:
            epsilon = rounded_up(other.epsilon)
            yield f"Every charge also fits the budget of {other.dataset}, of epsilon {epsilon}."
    yield "\nThe service ensures:"
    yield from (f"- {one}" for one in stated.ensured)
    yield "\nThe operator and the trainers ensure:"
    yield from (f"- {one}" for one in stated.assumed)
    yield (
        f"\nVerified at {receipt.time}: the log {receipt.topic} with prefix {receipt.prefix} "
        "was replayed, and fits all that was stored and published. Heads of its hash chain:"
    )
    yield from (
        f"  partition {one.partition}, offset {one.next}: {one.head}" for one in receipt.heads
    )
    if receipt.signature is not None:
        yield f"Signature of the receipt: {receipt.signature}"
