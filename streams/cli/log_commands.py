"""The commands that replay the log: verify, explain and report."""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from streams.cli.commands import command
from streams.cli.options import (
    AT_DELTA,
    CLIENT,
    EPSILONS_AT_DELTA,
    FILE_OBSERVER,
    ONLY_DATASET,
    SIGNING_KEY,
    arg,
    user_option,
)
from streams.cli.printing import UnusableInput, note, plain, say, show, tell
from streams.cli.subjects import ids, is_known_absent, kind_of, no_dataset, user_of
from streams.cli.table_files import Kind, check_file, check_package, complete_file, write_table
from streams.config import Config
from streams.failures import Exit
from streams.operations.rejected import utc
from streams.records import FALSE_POSITIVE_RATE, HALT_REASONS, User
from streams.replay.archive import Archive
from streams.replay.explain import AccountEvent, Explanation, Share
from streams.replay.explain import explain as explanation_of
from streams.replay.file import FileArchive
from streams.replay.findings import PartitionVerified, Verified
from streams.replay.log_replay import LogReplay, compared_at, in_words, unproven
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
from streams.replay.report import Report, ReportRefused
from streams.replay.report import report as report_of
from streams.replay.service import ServiceArchive, append
from streams.replay.verify import verify as verify_service

_VERIFIED = (
    *("partition", "to", "state_at", "snapshot_at"),
    *("users", "answers", "rejects", "odometers", "priced", "findings"),
)
_NOTES = {
    "in_outbox": "outputs are still in the outbox",
    "signed": "records have the signature of a trusted key",
    "without_signature": "have none",
    "expired": "answers are too old to be in their topics",
}


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
        verified = verify_service(archive, against=against, progress=_show_progress)
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
    ended. The file then refuses every charge. The command reads the log of the service and compares
    its hash chain with the file. If it is interrupted, run it again. Datasets with an access list
    then need `turnstile dataset access --copied-from` with the id that this command prints as from.
    """
    path, instead_of = str(options.budgets), options.instead_of
    with closing(FileArchive(path, config.timeout, writable=True)) as file:
        service = ServiceArchive(config)
        other = instead_of and bytes.fromhex(instead_of)
        for part in move(file, service, partial(append, config), instead_of=other, tell=note):
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
    return receipt_in(options.against, options.public_key) if options.against else None


def receipt_of(verified: Verified, key: Path | None, config: Config) -> Receipt:
    """Return the receipt of a verification, signed if there is a key."""
    policies = verified.policies_digest()
    receipt = new_receipt(config.prefix, verified.topic, verified.heads, policies)
    return signed(receipt, key) if key else receipt


def receipt_in(path: Path, public_key: Path | None) -> Receipt:
    """Return an earlier receipt, whose signature is checked if there is a key."""
    receipt = read(path)
    if public_key:
        check_signature(receipt, public_key)
    elif receipt.signature is not None:
        note("turnstile: the signature of the receipt is not checked without --public-key")
    return receipt


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


def _show_progress(replay: LogReplay) -> None:
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
        *("priced", "signed", "without_signature", "in_outbox", "expired", "impossible"),
    )
    extent = {"partition": part.partition, "from": part.began, "to": part.next}
    counts = {"findings": part.counts.total(), "seconds": round(part.seconds, 3)}
    fields = {name: getattr(part, name) for name in names}
    return {**extent, "head": part.head.hex(), **fields, **counts}


def _show_verdict(verified: Verified, against: Receipt | None, as_json: bool) -> None:
    parts = verified.partitions
    show("verified_partition", map(_partition_fields, parts), as_json, _VERIFIED)
    if as_json:
        summary = {
            "fits": verified.fits,
            "findings": verified.wrong,
            "records": sum(part.records for part in parts),
            "users": sum(part.users for part in parts),
            "seconds": round(sum(part.seconds for part in parts), 3),
            "continues_receipt_of": against.time if against and verified.fits else None,
        }
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
    tell(_verdict(verified, against))


def _verdict(verified: Verified, against: Receipt | None) -> str:
    parts = verified.partitions
    records, users = (sum(getattr(part, name) for part in parts) for name in ("records", "users"))
    seconds = max(sum(part.seconds for part in parts), 1e-9)
    counted = (
        f"{records:,} records, {users:,} users, in {seconds:.1f} s "
        f"({records / seconds:,.0f} records/s)"
    )
    if verified.wrong:
        findings = "1 finding" if verified.wrong == 1 else f"{verified.wrong:,} findings"
        return f"Log and service differ: {findings} in {counted}."
    if not verified.fits:
        return f"Nothing wrong was found, but not everything could be compared: {counted}."
    notes = ""
    if against is not None:
        notes += f" The log continues the one of the receipt from {against.time}."
    for name, what in _NOTES.items():
        if count := sum(getattr(part, name) for part in parts):
            notes += f" {count:,} {what}."
    return f"Everything fits: {counted}.{notes}"


NOT_CHARGED = "Nothing was ever charged to this user."
"""The answer about users who exist and about users who do not."""


@command(
    "explain",
    FILE_OBSERVER,
    user_option("digits find the integer and the string"),
    arg("dataset DATASET", "only charges to the budget of this one", nargs="?"),
    EPSILONS_AT_DELTA,
    lines=("event",),
)
def explain(options: argparse.Namespace, config: Config) -> int:
    """Explain what happened to one user: every charge, and every HALT with its reason.

    The command replays the log without a worker. The log must have the heads of the hash chain that
    Redis and the last snapshot store; otherwise nothing is shown, and the exit code is 1. The
    output is about this user alone. A user who was never charged and one who does not exist get the
    same answer.
    """
    meant = ids(user_of(options), config)
    with opened(config) as archive:
        explained = {
            meant[known]: explanation_of(
                archive, known, delta=options.delta, dataset=options.dataset
            )
            for known in sorted(meant, key=lambda user: (isinstance(user, int), str(user)))
        }
    for user, explanation in explained.items():
        if options.json:
            for event in explanation.events:
                fields = {"user": user, **asdict(event), "time": utc(event.time)}
                show("event", {**fields, "compared": compared_at(explanation.heads)}, True)
        elif explanation.events:
            _show_events(user, explanation, options.delta)
    for why in unproven([explanation.heads for explanation in explained.values()]):
        note(f"turnstile: {why}")
    if not any(explanation.events for explanation in explained.values()):
        if options.dataset is not None and is_known_absent(options.dataset, config):
            return no_dataset(options.dataset)
        note(NOT_CHARGED)
    return Exit.OK


def _show_events(user: User, explanation: Explanation, delta: float | None) -> None:
    events = explanation.events
    say(f"User {plain(user)} ({kind_of(user)}). Confidential: show this to this user only.")
    say("")
    rows = [
        {
            "time, UTC": (utc(event.time) or "-")[:19].replace("T", " "),
            "run": f"{event.dataset}/{event.run}" if event.run else event.dataset,
            "step": event.step,
            "what": event.what,
            "norm": _norm(event),
            "budget of": share.dataset,
            "cost": _at_tightest(share, share.cost),
            "spent": _at_tightest(share, share.spent),
            "left": _at_tightest(share, share.left),
            "epsilon": share.epsilon,
            "why": _why(event, share),
        }
        for event in events
        for share in event.budgets
    ]
    is_nested = len({row["budget of"] for row in rows}) > 1
    show("event", rows, False, [name for name in rows[0] if is_nested or name != "budget of"])
    say("")
    for line in _summaries(events, delta):
        tell(line)
    tell(in_words([explanation.heads]))


def _at_tightest(share: Share, numbers: Sequence[float]) -> float | None:
    """Return the number at the order at which the largest part of the budget is spent."""
    return numbers[share.tightest] if numbers else None


REMARKS = {reason.name: reason.remark for reason in HALT_REASONS.values()}


def _why(event: AccountEvent, share: Share) -> str:
    """Return a remark about a budget in an event."""
    if event.refused_by == share.dataset:
        if event.exhausted or not share.left:
            return "nothing left"
        return f"{plain(_at_tightest(share, share.asked))} was asked for"
    if event.what == "earlier":
        known = ", and erased" if event.erased else ""
        return f"before offset {event.offset}, where the log begins{known}"
    if event.what == "erased":
        return "the rest of the budget is spent: the user is not admitted again"
    if event.reason in REMARKS:
        return REMARKS[event.reason]
    return "nothing left after it" if event.exhausted and event.what != "halted" else ""


def _norm(event: AccountEvent) -> float | str:
    if event.what == "clipped":
        return f"{plain(event.granted)} of {plain(event.norm)}"
    return event.norm


def _summaries(events: Sequence[AccountEvent], delta: float | None) -> Iterator[str]:
    """Yield a summary of each budget."""
    for name in dict.fromkeys(share.dataset for event in events for share in event.budgets):
        charged = [(e, share) for e in events for share in e.budgets if share.dataset == name]
        steps = [event for event, _ in charged if event.step is not None]
        halted = sum(event.what == "halted" for event in steps)
        _, last = charged[-1]
        at = last.tightest
        order = f" at order {plain(last.orders[at])}" if last.orders else ""
        left = plain(_at_tightest(last, last.left))
        budget = f" of {plain(last.budget[at])}" if last.budget else ""
        squares = f" ({last.unit} adds in squares)" if last.power == 2 else ""
        yield (
            f"Budget of {name} ({last.measure}, {last.unit}): {plain(last.spent[at])}{budget} "
            f"spent{order}, {left} left{squares}, after {len(steps)} steps, halted at {halted} of "
            "them."
        )
        if last.budget_epsilon is None:
            yield "An epsilon belongs to a delta: give that of your statement (--delta)."
            continue
        where = "At every delta" if delta is None else f"At delta {delta:g} (--delta)"
        whole = f"{where}, the whole budget has epsilon {plain(last.budget_epsilon)}"
        if last.epsilon is None:
            yield (
                f"{whole}. There is no smaller epsilon, because norm levels may have followed "
                "sampling coins (sampled_levels in the policy)."
            )
        else:
            yield (
                f"{whole}. What was spent so far has epsilon {plain(last.epsilon)}, whenever the "
                "runs end. Each holds by itself. The second can be larger, because it allows the "
                "outputs to decide when the runs end."
            )


_REPORT_COLUMNS: Mapping[str, Kind] = {
    **dict.fromkeys(("dataset", "user", "id_kind", "measure"), "text"),
    "steps": "integer",
    **dict.fromkeys(("order", "spent", "remaining", "epsilon", "any_time_epsilon"), "number"),
    **dict.fromkeys(("true_positive_rate", "advantage"), "number"),
    **dict.fromkeys(("budget_true_positive_rate", "budget_advantage"), "number"),
    **dict.fromkeys(("delta", "false_positive_rate"), "number"),
    "method": "text",
}
_LOSS = ("dataset", "user", "steps", "spent", "remaining", "epsilon", "any_time_epsilon")
_PRIVATE = 0o600
_MEANING = (
    "epsilon bounds the loss of a fixed schedule of the same steps. It is no guarantee if steps, "
    "norms or the end of a run followed from released outputs; any_time_epsilon is one. In files "
    "and with --json, true_positive_rate and advantage bound attacks on such a schedule that test "
    "whether a user's data was used. The columns that begin with budget are guarantees."
)


@command(
    "report",
    FILE_OBSERVER,
    ONLY_DATASET,
    AT_DELTA,
    arg(
        "--false-positive-rate RATE",
        "of the membership attacks whose risk is reported",
        default=FALSE_POSITIVE_RATE,
    ),
    arg(
        "--method",
        "loss distributions (pld), Rényi divergences, the saddle point (refused where it "
        "proves no bound), or the smaller bound of the first two",
        default="tightest",
        choices=("tightest", "pld", "renyi", "saddlepoint"),
    ),
    arg("--output FILE", "a .csv or .parquet file (default: standard output)"),
    lines=("loss", "report"),
)
def report(options: argparse.Namespace, config: Config) -> int:
    """Report the loss of every user's steps, as a fixed schedule and at any time.

    The command replays the log without a worker. The log must have the heads of the hash chain that
    Redis and the last snapshot store; otherwise nothing is shown, and the exit code is 1. Each row
    is for its own user alone. The column epsilon bounds the loss of a fixed schedule of the same
    steps. It is no guarantee if steps, or the end of a run, followed from outputs; any_time_epsilon
    is one, and is empty after sampled steps. true_positive_rate and advantage are the success of an
    attack that tests whether the user's data was used, for the same schedule; the columns that
    begin with budget bound it for the whole budget, and are a guarantee. No report is made if
    levels may have followed sampling coins (Roster.observe).
    """
    output: Path | None = options.output
    if output is not None:
        check_file(output, (".csv", ".parquet"))
        if output.suffix == ".parquet":
            check_package("pyarrow", "report")
    try:
        with opened(config) as archive:
            reported = report_of(
                archive,
                delta=options.delta,
                false_positive_rate=options.false_positive_rate,
                method=options.method,
                dataset=options.dataset,
                progress=_show_progress,
            )
    except ReportRefused as refused:
        note(f"turnstile: {refused}")
        return Exit.REFUSED
    note(in_words(reported.heads))
    for why in unproven(reported.heads):
        note(f"turnstile: {why}")
    losses = reported.losses
    if options.dataset is not None and not losses:
        return no_dataset(options.dataset)
    given = {
        "delta": options.delta,
        "false_positive_rate": options.false_positive_rate,
        "method": options.method,
    }
    if erased := sum(part.erased for part in losses):
        note(f"{erased} accounts have no row: their users were erased")
    note(_MEANING)
    if output is None:
        show("loss", _loss_rows(reported, given, options.json), options.json, _LOSS)
        return Exit.OK
    kind: Literal["csv", "parquet"] = "csv" if output.suffix == ".csv" else "parquet"
    with complete_file(output, _PRIVATE) as draft:
        write_table(draft, _REPORT_COLUMNS, _loss_rows(reported, given, False), kind)
    compared = {"compared": list(map(compared_at, reported.heads))} if options.json else {}
    users = Counter[str]()
    for part in losses:
        users[part.dataset] += len(part.users)
    for name, count in sorted(users.items()):  # numbers of users, and nothing of the contents
        shown = {"dataset": name, "users": count, "file": str(output), **compared}
        show("report", shown, options.json)
    return Exit.OK


def _loss_rows(
    reported: Report, given: dict[str, Any], is_compared: bool
) -> Iterator[dict[str, Any]]:
    names = (
        *("steps", "order", "spent", "remaining", "epsilon", "any_time_epsilon"),
        *("true_positive_rate", "advantage"),
    )
    for part in reported.losses:
        columns = [getattr(part, name).tolist() for name in names]
        shared = {
            "budget_true_positive_rate": part.budget_risk.true_positive_rate,
            "budget_advantage": part.budget_risk.advantage,
            **given,
        }
        if is_compared:
            shared["compared"] = compared_at(reported.heads[part.partition])
        for user, *numbers in zip(part.users, *columns, strict=True):
            known = (None if math.isnan(number) else number for number in numbers)
            about = {"dataset": part.dataset, "user": user, "id_kind": kind_of(user)}
            row = zip(names, known, strict=True)
            yield {**about, "measure": part.measure, **dict(row), **shared}
