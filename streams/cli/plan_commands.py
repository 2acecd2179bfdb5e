"""The check and the plan of ``turnstile answer``, which charge nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from streams.answerer.query_file import QueryFile, read_query_file
from streams.cli.printing import UnusableInput, note, plain, say, show, show_table
from streams.cli.subjects import no_dataset
from streams.config import Config, Unavailable
from streams.failures import Exit
from streams.operations.status import read_datasets
from streams.sdk.dataset_requests import policy_from
from streams.toml import read_toml

if TYPE_CHECKING:
    from streams.answerer.event_file import LabelUse
    from streams.answerer.event_input import EventInput
    from streams.answerer.query_plans import QueryPlan, Scale, Setting
    from streams.records import Policy

_SECONDS: Final = 2.0
"""A file can be checked and planned without a service, so this waits for one only for a moment."""
_LABELS: Final = {
    **{name: name for name in ("query", "key", "column")},
    "unused": "in no event",
    "other_events": "unlabelled events",
    "other_values": "their values",
}
_WITHOUT_NOISE: Final = "is computed from the events without noise; do not publish it."


def check(query_file: QueryFile, options: argparse.Namespace, config: Config) -> int:
    """Show each query with its noise, or refuse what the answerer would refuse.

    Raises:
        UnusableInput: rows of the input cannot be read, as ``events_of`` says.
    """
    from streams.answerer.event_file import label_uses
    from streams.answerer.pricing import costs_of
    from streams.queries.continual_monitoring import quantile_of_noise

    policy, is_absent = _policy_of(query_file, options, config)
    costs = None if policy is None else costs_of(query_file, [policy])
    rows = []
    for number, query in enumerate(query_file.queries):
        stddev = query.noise or (None if costs is None else costs.noises[number])
        half, blocks, every = None, query_file.blocks[number], query.every or query.window
        numbers = 1 if query.keys else query.dimension
        if stddev is not None and query.is_linear:
            half = stddev * quantile_of_noise(query_file.confidence, numbers)
        selection = None if stddev is None else query.selection(stddev)
        seconds = [
            length / 1000 if unit == "ms" else None
            for length, unit in (one.within(query_file.zone) for one in (query.window, every))
        ]
        rows.append(
            {
                "query": query.name,
                "kind": query.kind,
                "window": query.window.text,
                "every": every.text,
                "window_seconds": seconds[0],
                "every_seconds": seconds[1],
                "numbers": numbers,
                "norm_of_a_user": query.bound,
                "noise_stddev": stddev,
                "interval_half_width": half,
                "active_windows": query.active_windows or None,
                "block_windows": blocks.size or None,
                "left_out": blocks.left_out or None,
                "users_of_a_published_key": selection and selection.threshold / query.cap,
                "chance_of_a_lone_key": selection and selection.chance(1),
                "correction_stddev": None if costs is None else costs.corrections[number] or None,
            }
        )
    shown = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    show("query", rows, options.json, [name for name in shown if not name.endswith("_seconds")])
    if options.input is not None:
        given = events_of(options.input, query_file.for_a_file(), options)
        _show_labels(list(label_uses(query_file, given.events)), options.json)
    if policy is None:
        note(f"turnstile: noise from active_windows is not shown: {_unknown_budget(query_file)}")
    if is_absent:
        return no_dataset(query_file.dataset)
    if not options.json:
        only = "" if query_file.source.topic else " with --input: it names no topic"
        note(f"the file is usable{only}; nothing was charged")
    return Exit.OK


def _show_labels(uses: list[LabelUse], as_json: bool) -> None:
    """Show which labels and conditions of the queries do not fit the events."""
    if uses and not as_json:
        say(f"\nPRIVATE: this list of labels {_WITHOUT_NOISE}")
    show("labels", uses, as_json, _LABELS)


def _unknown_budget(query_file: QueryFile) -> str:
    return (
        f"the budget of dataset {query_file.dataset!r} is not known. Create the dataset "
        "(`turnstile dataset create`), or give --epsilon and --delta"
    )


def plan(options: argparse.Namespace, config: Config) -> int:
    """Show the errors of a query's answers for several settings, computed from given events."""
    from streams.answerer.query_plans import plan_of

    if options.events is None or options.input is not None:
        raise UnusableInput(
            "--plan needs public or simulated events, not the input: give --events FILE"
        )
    query_file = read_query_file(options.file)
    policy, is_absent = _policy_of(query_file, options, config)
    if policy is None:
        if is_absent:
            no_dataset(query_file.dataset)
        raise UnusableInput(_unknown_budget(query_file))
    content = read_toml(options.file)
    given = events_of([options.events], query_file.for_a_file(), options)
    found = plan_of(content, options.query, policy, given.events)
    if options.json:
        show("plan", {"private": not options.public, **asdict(found)}, as_json=True)
    else:
        _show(found, is_private=not options.public)
    return Exit.OK


def events_of(
    paths: Sequence[Path], query_file: QueryFile, options: argparse.Namespace
) -> EventInput:
    """Read files of events in the order of their names, and report the rows that do not count.

    Raises:
        UnusableInput: a file is given twice, or there are rows that cannot be read, and the
            operator has not accepted that they do not count.
    """
    from streams.answerer.event_file import EventFile
    from streams.answerer.event_input import EventInput

    if len({path.resolve() for path in paths}) < len(paths):
        raise UnusableInput("a file of events is given twice: its events would count twice")
    given = EventInput([EventFile(path, query_file) for path in sorted(paths)])
    if given.needs_acceptance and not options.accept_skipped:
        raise UnusableInput(
            f"{given.report()}\nNothing was charged. Correct the rows, or pass --accept-skipped to "
            "go on without them"
        )
    if report := given.report():
        note(report)
    return given


def _policy_of(
    query_file: QueryFile, options: argparse.Namespace, config: Config
) -> tuple[Policy | None, bool]:
    """Return the policy of the dataset, or of --epsilon and --delta; None if there is none.

    The second value is True if the dataset certainly does not exist.
    """
    if options.epsilon is not None or options.delta is not None:
        policy = policy_from(
            query_file.dataset,
            partitions=1,
            measure="gdp",
            epsilon=options.epsilon,
            delta=options.delta,
        )
        return policy, False
    try:
        datasets = read_datasets(replace(config, timeout=min(config.timeout, _SECONDS)))
    except Unavailable:
        return None, False
    held = datasets.get(query_file.dataset)
    return (None, True) if held is None else (held.policy, False)


_COLUMNS: Final = (
    "active_windows", "noise", "error", "bias", "users left out", "interval", "covered",
    "corrected",
)  # fmt: skip


def _show(found: QueryPlan, *, is_private: bool) -> None:
    if is_private:
        say(f"PRIVATE: this table {_WITHOUT_NOISE}")
    bounding, whole = found.contribution_bounding, found.whole_vector
    show_table(
        _COLUMNS,
        [
            *(_row(f"{setting.active_windows:g}", setting) for setting in found.settings),
            _row("worst case", found.worst_case),
            _row(f"bounding, {bounding.active_windows:g}", bounding),
            _row(f"whole vector, {whole.active_windows:g}", whole),
        ],
    )
    best, others = found.recommended, (found.worst_case, found.contribution_bounding)
    _show_scale(found.scale, best)
    say(f"Recommended for {plain(found.query)}: {_setting_of(best)}")
    if (least := min(found.settings, key=lambda setting: setting.rmse)) is not best:
        say(
            f"{_setting_of(least)} has a smaller error, {least.rmse:.4g}, but is not recommended: "
            f"in {', '.join(least.failing(found.least_coverage))}, too few of its intervals "
            "contain the true number."
        )
    if any(other.rmse < best.rmse for other in others):
        say("The worst case or contribution bounding has less error on these events.")
    if whole.rmse < best.rmse:
        say("The whole vector, released once, has less error. It needs all events first.")
    if best.unbounded:
        say(f"With it, {best.unbounded:.0%} of the windows have no interval.")
    if found.unplanned:
        names = ", ".join(map(plain, found.unplanned))
        say(f"No plan shows the errors of {names}. Their charges count in this plan.")
    if months := best.failing(found.least_coverage):
        held = f"{100 * found.least_coverage:g} %"
        say(f"With it, less than {held} of the intervals hold in {', '.join(months)}.")


def _show_scale(scale: Scale, best: Setting) -> None:
    """Show the true answers, by which errors are large or small, and what the bounds cut."""
    shown = [
        f"{label} {mean:,.4g}" + (f" ({best.rmse / abs(mean):,.1%})" if mean else "")
        for label, mean in zip(scale.labels or [""], scale.mean_answers, strict=True)
    ]
    say(f"True answer of a window, on average (recommended row's error): {plain(shown).strip()}.")
    if 2 * scale.filled_windows < scale.windows:
        say(
            f"Events are in {scale.filled_windows} of {scale.windows} windows only. With events in "
            "more windows, users need a larger active_windows: plan with events up to the end."
        )
    if scale.cut_users:
        say(
            f"The bounds on a user's contribution cut {scale.cut_share:.1%} of all contributions, "
            f"of {scale.cut_users:,} of the {scale.users:,} users. The errors do not contain this."
        )


def _setting_of(setting: Setting) -> str:
    corrected = ", correct = true" if setting.block_windows else ""
    return f"active_windows = {setting.active_windows:g}{corrected}"


def _row(name: str, setting: Setting) -> list[str]:
    return [
        name,
        f"{setting.noise_stddev:.4g}",
        f"{setting.rmse:.4g}",
        f"{setting.bias:+.3g}",
        f"{setting.halted_users:,}",
        f"+-{setting.interval_half_width:.4g}",
        f"{setting.coverage:.0%}",
        f"by {setting.block_windows}" if setting.block_windows else "no",
    ]
