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
from typing import Any

from streams.cli.printing import Exit, UnusableInput, note, plain, say, show, show_table
from streams.cli.subjects import ids, is_known_absent, kind_of, no_dataset, user_of
from streams.cli.table_files import (
    Kind,
    check_file,
    check_package,
    complete_file,
    write_csv,
    write_parquet,
)
from streams.config import Config
from streams.operations.rejected import utc
from streams.records import HALT_REASONS, User
from streams.replay.archive import Archive
from streams.replay.explain import AccountEvent, Explanation, Share
from streams.replay.explain import explain as explanation_of
from streams.replay.file import FileArchive
from streams.replay.findings import LogFinding, PartitionVerified, Verified
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
from streams.replay.report import Losses, Report, ReportRefused
from streams.replay.report import report as report_of
from streams.replay.service import ServiceArchive, append
from streams.replay.verify import verify as verify_service

_VERIFY_COLUMNS = {
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
_NOTES = {
    "in_outbox": "outputs are still in the outbox",
    "signed": "records have the signature of a trusted key",
    "without_signature": "have none",
    "expired": "answers are too old to be in their topics",
}
_INDENT = " " * 10


def verify(options: argparse.Namespace, config: Config) -> int:
    """Verify the service; write a receipt, if one is wanted and everything fits."""
    against = _earlier_receipt(options)
    with opened(config) as archive:
        if against is not None:
            check_same_log(against, archive, config)
        verified = verify_service(archive, against=against, progress=_show_progress)
    for finding in verified.findings:
        _show_mismatch(finding, options.json)
    _show_verdict(verified, against, options.json)
    if not verified.fits:
        if options.receipt:
            note(f"turnstile: no receipt was written to {options.receipt}: not everything fits")
        return Exit.REFUSED
    if options.receipt:
        write(receipt_of(verified, options.key, config), options.receipt)
        note(f"turnstile: the receipt is in {options.receipt}")
    return Exit.OK


def backup(options: argparse.Namespace, config: Config) -> int:
    """Copy a budget file; verify the copy, and write its receipt if everything fits."""
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


def import_file(options: argparse.Namespace, config: Config) -> int:
    """Move a budget file into a service."""
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


def _show_mismatch(finding: LogFinding, as_json: bool) -> None:
    if as_json:
        show("mismatch", asdict(finding), as_json)
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


def _partition_fields(part: PartitionVerified) -> dict[str, Any]:
    names = (
        *("records", "state_at", "snapshot_at", "users", "answers", "rejects", "odometers"),
        *("priced", "signed", "without_signature", "in_outbox", "expired", "impossible"),
    )
    log = {"partition": part.partition, "from": part.began, "to": part.next}
    counts = {"findings": part.counts.total(), "seconds": round(part.seconds, 3)}
    fields = {name: getattr(part, name) for name in names}
    return {**log, "head": part.head.hex(), **fields, **counts}


def _show_verdict(verified: Verified, against: Receipt | None, as_json: bool) -> None:
    parts = verified.partitions
    if as_json:
        for part in parts:
            show("verified_partition", _partition_fields(part), as_json)
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
    rows = [[_partition_fields(part)[name] for name in _VERIFY_COLUMNS] for part in parts]
    show_table(tuple(_VERIFY_COLUMNS.values()), rows)
    for part in parts:
        if part.began:
            say(
                f"partition {part.partition}: replayed from the snapshot at {part.began}, "
                "which is not verified: earlier records are deleted"
            )
        for what in part.impossible:
            say(f"partition {part.partition}: not compared: {plain(what)}")
    say(_verdict(verified, against))


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


def explain(options: argparse.Namespace, config: Config) -> int:
    """Show what happened to one user."""
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
    names = ("time, UTC", "run", "step", "what", "norm", "budget of", "cost", "spent", "left")
    rows = [
        [
            (utc(event.time) or "-")[:19].replace("T", " "),
            f"{event.dataset}/{event.run}" if event.run else event.dataset,
            event.step,
            event.what,
            _norm(event),
            share.dataset,
            *_at_tightest(share, share.cost, share.spent, share.left),
            share.epsilon,
            _why(event, share),
        ]
        for event in events
        for share in event.budgets
    ]
    show_table((*names, "epsilon", "why"), rows)
    say("")
    for line in _summaries(events, delta):
        say(line)
    say(in_words([explanation.heads]))


def _at_tightest(share: Share, *numbers: Sequence[float]) -> list[float | None]:
    """Return numbers at the order at which the largest part of the budget is spent."""
    return [each[share.tightest] if each else None for each in numbers]


REMARKS = {reason.name: reason.remark for reason in HALT_REASONS.values()}


def _why(event: AccountEvent, share: Share) -> str:
    """Return a remark about a budget in an event."""
    if event.refused_by == share.dataset:
        if event.exhausted or not share.left:
            return "nothing left"
        asked, left = _at_tightest(share, share.asked, share.left)
        return f"{plain(asked)} asked for, {plain(left)} left"
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
        left = plain(last.left[at] if last.left else None)
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
    "dataset": "text",
    "user": "text",
    "id_kind": "text",
    "measure": "text",
    "steps": "integer",
    "order": "number",
    "spent": "number",
    "remaining": "number",
    "epsilon": "number",
    "any_time_epsilon": "number",
    "true_positive_rate": "number",
    "advantage": "number",
    "budget_true_positive_rate": "number",
    "budget_advantage": "number",
    "delta": "number",
    "false_positive_rate": "number",
    "method": "text",
}
_PRIVATE = 0o600
_MEANING = (
    "epsilon bounds the loss of a fixed schedule of the same steps. It is no guarantee if steps, "
    "norms or the end of a run followed from released outputs; any_time_epsilon is one. "
    "true_positive_rate and advantage bound attacks on such a schedule that test whether a user's "
    "data was used. The columns that begin with budget are guarantees."
)


def report(options: argparse.Namespace, config: Config) -> int:
    """Report every user's loss, written only when complete."""
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
        for part in losses:
            compared = (
                {"compared": compared_at(reported.heads[part.partition])} if options.json else {}
            )
            for row in _loss_rows([part], given):
                show("loss", {**row, **compared}, options.json)
        return Exit.OK
    with complete_file(output, _PRIVATE) as draft:
        rows = _loss_rows(losses, given)
        if output.suffix == ".csv":
            write_csv(draft, _REPORT_COLUMNS, rows)
        else:
            write_parquet(draft, _REPORT_COLUMNS, rows)
    _summarise(reported, output, options.json)
    return Exit.OK


def _loss_rows(losses: Sequence[Losses], given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    names = (
        *("steps", "order", "spent", "remaining", "epsilon", "any_time_epsilon"),
        *("true_positive_rate", "advantage"),
    )
    for part in losses:
        columns = [getattr(part, name).tolist() for name in names]
        shared = {
            "budget_true_positive_rate": part.budget_risk.true_positive_rate,
            "budget_advantage": part.budget_risk.advantage,
            **given,
        }
        for user, *numbers in zip(part.users, *columns, strict=True):
            known = (None if math.isnan(number) else number for number in numbers)
            about = {"dataset": part.dataset, "user": user, "id_kind": kind_of(user)}
            row = zip(names, known, strict=True)
            yield {**about, "measure": part.measure, **dict(row), **shared}


def _summarise(reported: Report, path: Path, as_json: bool) -> None:
    """Print the numbers of users, and nothing of the contents."""
    users = Counter[str]()
    for part in reported.losses:
        users[part.dataset] += len(part.users)
    compared = {"compared": list(map(compared_at, reported.heads))} if as_json else {}
    for name, count in sorted(users.items()):
        shown = {"dataset": name, "users": count, "file": str(path), **compared}
        show("report", shown, as_json)
