"""The commands that show what users have lost: explain and report."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from streams.cli.commands import command
from streams.cli.log_commands import opened, show_progress
from streams.cli.options import (
    AT_DELTA,
    EPSILONS_AT_DELTA,
    FILE_OBSERVER,
    ONLY_DATASET,
    arg,
    decision_id_of,
    user_option,
)
from streams.cli.printing import UnusableInput, note, plain, say, show, tell
from streams.cli.subjects import ids, is_known_absent, kind_of, no_dataset, user_of
from streams.cli.table_files import Kind, check_file, complete_file, write_table
from streams.config import Config
from streams.failures import Exit
from streams.operations.guarantees import ABOVE_BUDGET
from streams.operations.rejected import utc
from streams.records import FALSE_POSITIVE_RATE, HALT_REASONS, ChargeRoster, User
from streams.replay.decision_explanation import DecidedUser, explain_decision
from streams.replay.explain import AccountEvent, Explanation, Share
from streams.replay.explain import explain as explanation_of
from streams.replay.log_replay import compared_at, in_words, unproven
from streams.replay.report import Report, ReportRefused
from streams.replay.report import report as report_of

NOT_CHARGED = "Nothing was ever charged to this user. `turnstile rejects` has rejected requests."
"""The answer about users who exist and about users who do not."""


@command(
    "explain",
    FILE_OBSERVER,
    user_option("digits find the integer and the string", required=False),
    arg(
        "--decision ID",
        "explain this decision instead: for all its users or, with --user, for one",
        decision_id_of,
    ),
    arg("dataset DATASET", "only charges to the budget of this one", nargs="?"),
    EPSILONS_AT_DELTA,
    lines=("event", "decided_user"),
)
def explain(options: argparse.Namespace, config: Config) -> int:
    """Explain what happened to one user, or one decision: every charge, and every HALT's reason.

    The command replays the log without a worker, of a service or of a file (--budgets). The log
    must have the heads of the hash chain that Redis, the last snapshot or the file stores;
    otherwise nothing is shown, and the exit code is 1. With --user alone, the output is about this
    user alone. A user who was never charged and one who does not exist get the same answer. An
    explained decision has data of all its users: it is for the curator.
    """
    if options.decision is not None:
        return _explain_decision(options, config)
    if options.user is None:
        raise UnusableInput("give --user ID, or --decision ID")
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


def _explain_decision(options: argparse.Namespace, config: Config) -> int:
    if options.dataset is not None or options.delta is not None:
        raise UnusableInput("--decision names the step: leave out DATASET and --delta")
    meant = None if options.user is None else ids(user_of(options), config)
    with opened(config) as archive:
        found = explain_decision(archive, options.decision)
    charge = found.charge
    about = {
        "decision": str(found.decision),
        "time": utc(found.written),
        **{name: getattr(charge, name) for name in ("dataset", "run", "attempt", "step")},
        "mechanism": charge.mechanism,
        "scale": None if charge.mechanism == "pure-dp" else charge.scale,
        "sampling_rate": charge.sampling_rate if isinstance(charge, ChargeRoster) else None,
    }
    users = [
        replace(user, user=user.user if meant is None else meant[user.user])
        for user in found.users
        if meant is None or user.user in meant
    ]
    if options.json:
        compared = compared_at(found.heads)
        lines = ({**about, **asdict(user), "compared": compared} for user in users)
        show("decided_user", lines, True)
    else:
        show("decision", about, False)
        halted = sum(user.what == "halted" for user in users)
        say(f"Users: {len(users)}, halted: {halted}. Confidential: show this to the curator.")
        say("")
        rows = (
            {
                "user": user.user,
                "norm": user.norm,
                "granted": user.granted,
                "what": ": ".join(filter(None, (user.what, _why_halted(user)))),
            }
            for user in users
        )
        if show("decided_user", rows, False, ("user", "norm", "granted", "what")):
            say("")
        tell(in_words([found.heads]))
    for why in unproven([found.heads]):
        note(f"turnstile: {why}")
    if meant is not None and not users:
        note("turnstile: this decision of one partition is not about this user")
    return Exit.OK


def _why_halted(user: DecidedUser) -> str:
    if user.refused_by is not None:
        left = "nothing is left" if user.exhausted else "the step does not fit"
        return f"{left} in the budget of {user.refused_by}"
    if user.what == "halted" and user.reason is None:
        return "at a step before the log begins"
    return REMARKS.get(user.reason or "", "nothing left after it" if user.exhausted else "")


def _show_events(user: User, explanation: Explanation, delta: float | None) -> None:
    events = explanation.events
    say(f"User {plain(user)} ({kind_of(user)}). Confidential: show this to this user only.")
    for (dataset, run), some in groupby(events, lambda event: (event.dataset, event.run)):
        rows = [
            {
                "time, UTC": (utc(event.time) or "-")[: len("2026-01-31T09:30")].replace("T", " "),
                "step": _step(event),
                "norm": _norm(event),
                "budget of": share.dataset,
                "cost": _part(share, share.cost),
                "spent": _part(share, share.spent),
                "what": ": ".join(filter(None, (event.what, _why(event, share)))),
            }
            for event in some
            for share in event.budgets
        ]
        say(f"\n{plain(dataset)}/{plain(run)}" if run else f"\n{plain(dataset)}")
        is_nested = any(row["budget of"] != rows[0]["budget of"] for row in rows)
        show("event", rows, False, [name for name in rows[0] if is_nested or name != "budget of"])
    say("")
    for line in _summaries(events, delta):
        tell(line)
    tell(in_words([explanation.heads]))


def _step(event: AccountEvent) -> str:
    """Return the step with the query and the window that it answered, if they are known."""
    from streams.answerer.answer_table import shown_moment

    if event.step is None:
        return "-"
    window = None if event.start is None else shown_moment(datetime.fromisoformat(event.start))
    found = (str(event.step), event.query, window, "corrected" if event.is_correction else None)
    return " ".join(filter(None, found))


def _at_tightest(share: Share, numbers: Sequence[float]) -> float | None:
    """Return the number at the order at which the largest part of the budget is spent."""
    return numbers[share.tightest] if numbers else None


def _part(share: Share, numbers: Sequence[float]) -> str:
    """Return what part of the budget an amount is, at that order."""
    amount, budget = _at_tightest(share, numbers), _at_tightest(share, share.budget)
    if amount is None or budget is None:
        return "-"
    percent = 100 * (amount / budget) ** share.power
    return f"{percent:,.0f} %" if percent >= 100.0 else f"{percent:.3g} %"


REMARKS = {reason.name: reason.remark for reason in HALT_REASONS.values()}


def _why(event: AccountEvent, share: Share) -> str:
    """Return a remark about a budget in an event."""
    if event.refused_by == share.dataset:
        if event.exhausted or not share.left:
            return "nothing left"
        return f"{_part(share, share.asked)} was asked for"
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
        order = f" at order {plain(last.orders[last.tightest])}" if last.orders else ""
        spent, left, budget = (
            plain(_at_tightest(last, numbers)) for numbers in (last.spent, last.left, last.budget)
        )
        squares = f" ({last.unit} adds in squares)" if last.power == 2 else ""
        yield (
            f"Budget of {name} ({last.measure}, {last.unit}): {_part(last, last.spent)} spent, "
            f"{spent} of {budget}{order}, {left} left{squares}, after {len(steps)} steps, halted "
            f"at {halted} of them."
        )
        if last.budget_epsilon is None:
            yield "An epsilon belongs to a delta: give that of your statement (--delta)."
            continue
        where = "At every delta" if delta is None else f"At delta {delta:g} (--delta)"
        so_far = (
            "There is no smaller epsilon, because norm levels may have followed sampling coins "
            "(sampled_levels in the policy)."
            if last.epsilon is None
            else f"The part spent so far has any-time epsilon {plain(last.epsilon)}."
        )
        if last.epsilon is not None and last.epsilon > last.budget_epsilon:
            so_far += f" {ABOVE_BUDGET}"
        yield f"{where}, the whole budget has epsilon {plain(last.budget_epsilon)}. {so_far}"


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
    f"norms or the end of a run followed from released outputs; any_time_epsilon is one. "
    f"{ABOVE_BUDGET} In files and with --json, true_positive_rate and advantage bound attacks on "
    "such a schedule that test whether a user's data was used. The columns that begin with budget "
    "are guarantees."
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
            import_module("pyarrow")  # or fail before the replay
    try:
        with opened(config) as archive:
            reported = report_of(
                archive,
                delta=options.delta,
                false_positive_rate=options.false_positive_rate,
                method=options.method,
                dataset=options.dataset,
                progress=show_progress,
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
    note(_MEANING, is_wrapped=True)
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
