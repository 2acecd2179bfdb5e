"""`turnstile explain`: what happened to one user, for that user."""

from __future__ import annotations

import argparse
import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from streams.cli.output import Exit, as_cell, note, plain, say, show, show_table
from streams.cli.presence import is_known_absent, no_dataset
from streams.cli.users import ids, user_of
from streams.config import Config
from streams.operations.times import utc
from streams.replay.explanation import AccountEvent, Explanation, Share
from streams.replay.explanation import explain as explanation_of
from streams.replay.fold import in_words, unproven
from streams.replay.service import KafkaArchive
from streams.schemas import User

NOBODY = "Nothing was ever charged to this user."
"""Whether there is such a user, or not."""

_EVENT = ("time", "dataset", "run", "step", "what", "norm", "granted", "mechanism", "scale")
_MORE = ("sampling_rate", "level", "refused_by", "too_soon", "erased", "exhausted")
_SHARE = ("budget_of", "order", "asked", "cost", "spent", "left", "epsilon", "budget_epsilon")
_PLACE = ("partition", "offset")


def explain(options: argparse.Namespace, config: Config) -> int:
    """Tell it: as a table, as JSON, or as CSV."""
    meant = ids(user_of(options), config)
    archive = KafkaArchive(config)
    explained = {
        meant[known]: explanation_of(
            archive,
            known,
            delta=options.delta,
            dataset=options.dataset,
        )
        for known in sorted(meant, key=lambda user: (isinstance(user, int), str(user)))
    }
    told = False
    for user, explanation in explained.items():
        events = explanation.events
        if options.csv:
            told = _as_csv(user, events, header=not told) or told
        elif options.json:
            for event in events:
                told = True
                compared = explanation.compared.shown
                show({"user": user, **_fields(event), "compared": compared}, as_json=True)
        else:
            told = _as_table(user, explanation, options.delta) or told
    for why in unproven([explanation.compared for explanation in explained.values()]):
        note(f"turnstile: {why}")
    if not told:
        if options.dataset is not None and is_known_absent(options.dataset, config):
            return no_dataset(options.dataset)
        note(NOBODY)
    return Exit.OK


def _fields(event: AccountEvent) -> dict[str, Any]:
    return {**asdict(event), "time": utc(event.time)}


def _rows(user: User, event: AccountEvent) -> Iterator[Mapping[str, Any]]:
    """A row for each budget; at the order of whose budget most is spent."""
    fields = _fields(event)
    for share in event.budgets:
        yield {"user": user, **fields, **_of(share)}


def _of(share: Share) -> dict[str, Any]:
    at = share.tightest
    return {
        "budget_of": share.dataset,
        "measure": share.measure,
        "order": share.orders[at] if share.orders else None,
        "asked": share.asked[at],
        "cost": share.cost[at],
        "spent": share.spent[at],
        "left": share.left[at] if share.left else None,
        "epsilon": share.epsilon,
        "budget_epsilon": share.budget_epsilon,
    }


def _as_csv(user: User, events: Sequence[AccountEvent], header: bool) -> bool:
    names = ("user", *_EVENT, *_MORE, *_SHARE, *_PLACE)
    told = False
    for event in events:
        for row in _rows(user, event):
            if header and not told:
                say(_csv_line(names))
            told = True
            say(_csv_line(["" if row[name] is None else row[name] for name in names]))
    return told


def _csv_line(values: Any) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(map(as_cell, values))
    return line.getvalue()


def _as_table(user: User, explanation: Explanation, delta: float) -> bool:
    events = explanation.events
    if not events:
        return False
    kind = "a string" if isinstance(user, str) else "an integer"
    say(f"User {plain(user)} ({kind}). For this user's eyes alone.")
    say("")
    names = ("time, UTC", "run", "step", "what", "norm", "budget of", "cost", "spent", "left")
    rows = [
        [
            (row["time"] or "-")[:19].replace("T", " "),
            f"{row['dataset']}/{row['run']}" if row["run"] else row["dataset"],
            row["step"],
            event.what,
            _norm(event),
            *(row[name] for name in ("budget_of", "cost", "spent", "left", "epsilon")),
            _why(event, row["budget_of"]),
        ]
        for event in events
        for row in _rows(user, event)
    ]
    words = ("time, UTC", "run", "what", "budget of", "why")
    show_table((*names, "epsilon", "why"), rows, words)
    say("")
    for line in _in_the_end(events, delta):
        say(line)
    say(in_words([explanation.compared]))
    return True


def _why(event: AccountEvent, budget: str) -> str:
    """What there is to say about a budget besides its numbers."""
    if event.refused_by == budget:
        share = next(share for share in event.budgets if share.dataset == budget)
        if event.exhausted or not share.left:
            return "nothing left"
        asked, left = share.asked[share.tightest], share.left[share.tightest]
        return f"{plain(asked)} asked for, {plain(left)} left"
    if event.what == "earlier":
        known = ", and erased" if event.erased else ""
        if not math.isnan(event.time):
            return f"in the log that the dataset came from{known}"
        return f"before offset {event.offset}, from which on the log is there{known}"
    if event.what == "erased":
        return "what was left is spent: nothing is admitted any more"
    if event.erased:
        return "erased"
    if event.too_soon:
        return "too soon after the last participation"
    return "nothing left after it" if event.exhausted and event.what != "halted" else ""


def _norm(event: AccountEvent) -> str:
    if event.what == "clipped":
        return f"{plain(event.granted)} of {plain(event.norm)}"
    return plain(event.norm)


def _in_the_end(events: Sequence[AccountEvent], delta: float) -> Iterator[str]:
    """Yield a summary of each budget."""
    for name in dict.fromkeys(share.dataset for event in events for share in event.budgets):
        steps = [e for e in events if e.step is not None and _has(e, name)]
        halted = sum(event.what == "halted" for event in steps)
        last = next(s for e in reversed(events) for s in e.budgets if s.dataset == name)
        at = last.tightest
        order = f" at order {plain(last.orders[at])}" if last.orders else ""
        left = plain(last.left[at] if last.left else None)
        yield (
            f"Budget of {name} ({last.measure}): {plain(last.spent[at])} spent{order}, "
            f"{left} left, after {len(steps)} steps, halted at {halted} of them."
        )
        whole = f"At delta {delta:g}, the whole budget has epsilon {plain(last.budget_epsilon)}"
        if last.epsilon is None:
            yield (
                f"{whole}. There is no smaller epsilon, because norm levels may have followed "
                "sampling coins (sampled_levels in the policy)."
            )
        else:
            yield (
                f"{whole}. What was spent so far has epsilon {plain(last.epsilon)}, whenever the "
                "runs end. These are two separate statements."
            )


def _has(event: AccountEvent, name: str) -> bool:
    return any(share.dataset == name for share in event.budgets)
