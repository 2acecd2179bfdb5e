"""Tables about the service for the reference: commands, settings, metrics, reasons, limits.

They are made from what the code itself uses, so they need no copy of any name or number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from enum import Enum
from inspect import getdoc
from types import SimpleNamespace
from typing import Any, cast, get_args, get_type_hints

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from accounting import (
    MAX_BUDGET_UNITS,
    MAX_LEVELS,
    MEASURES,
    UNIT_BITS,
    Gaussian,
    Laplace,
    Measure,
    Mechanism,
    PoissonGaussian,
    PoissonRecords,
    PureDP,
    StepShape,
    steps_measure,
)
from docs.markdown import table
from docs.python_pages import items
from docs.wire.asyncapi import reason_texts, texts_below
from streams.answerer.answerer_metrics import AnswererMetrics
from streams.answerer.kinds import KINDS
from streams.answerer.query_file import MOST_PANES, EventSource
from streams.answerer.query_keys import MOST_LABELS, FileTable, Query
from streams.cli.commands import Command, commands_of
from streams.cli.options import Argument
from streams.cli.page_commands import MOST_DAYS
from streams.config import Config
from streams.failures import Exit
from streams.kafka.answer_topics import ANSWER_NEEDS, ANSWER_SETTINGS, ANSWERS
from streams.kafka.batches import EVENT_BYTES
from streams.kafka.topics import HALTS, NORMS, ODOMETER, REJECTS, SETTINGS, SNAPSHOTS, WISHES
from streams.ledger.outputs import Channel, Output
from streams.ledger.validation import MECHANISMS
from streams.records import BUDGET, HALT_REASONS, OWN_BUDGET, Reason, encode
from streams.records.codec import (
    MAX_ACCOUNTS,
    MAX_ANSWER_BYTES,
    MAX_BALANCES,
    MAX_CHARGE_USERS,
    MAX_DATASETS,
    MAX_NAMES_BYTES,
    MAX_RECORD_BYTES,
    MAX_REQUEST_BYTES,
    MAX_ROSTERS,
)
from streams.records.fields import MAX_BUDGETS, MAX_KEYS, MAX_SEPARATION, RosterMechanism
from streams.sdk.observing import Observer, measure
from streams.store.store_port import SuspensionReason
from streams.worker.metrics import Metrics, PartitionsCollector
from streams.worker.ports import Ending

_DAY_MS = 24 * 60 * 60 * 1000
_RESTART = 75
"""The exit code of a worker that has to be started again."""
(_RANGE,) = get_type_hints(Config, include_extras=True)["partitions"].__metadata__
_MOST_PARTITIONS: int = _RANGE.le


# --- commands and settings ----------------------------------------------------------------------


def commands() -> str:
    """Return the table of all commands."""
    rows = [
        [f"[`turnstile {command.name}`](#turnstile-{command.name.replace(' ', '-')})",
         _plain(command.summary), ", ".join(f"`{line}`" for line in command.lines)]
        for command in commands_of()
    ]  # fmt: skip
    return table(["command", "purpose", "`--json` lines"], rows)


def options() -> str:
    """Return a section for each command, with its arguments."""
    return "\n".join(_section(command) for command in commands_of())


def _section(command: Command) -> str:
    words = " ".join([command.name, *_positional(command.arguments)])
    parts = [f"### `turnstile {command.name}`\n", f"    turnstile {words} [options]\n"]
    text = " ".join(f"{command.summary} {command.more}".split())
    parts.append(f"{_plain(text)}\n")
    rows = [[_usage(argument), _meaning(argument)] for argument in command.arguments]
    if rows:
        parts.append(table(["argument", "meaning"], rows))
    if command.settings:
        names = ", ".join(f"`--{name.replace('_', '-')}`" for name in command.settings)
        parts.append(f"[Settings](settings.md): {names}.\n")
    return "\n".join(parts)


def _usage(argument: Argument) -> str:
    (name,), given = argument.names, argument.given
    if not name.startswith("-"):
        return f"`{_placeholder(argument)}`"
    has_value = given.get("action") not in {"store_true"} and "metavar" not in given
    choices = "|".join(str(choice) for choice in given.get("choices", ()))
    word = name.strip("-").replace("-", "_").upper()
    value = given.get("metavar") or (choices or word if has_value else "")
    if given.get("nargs") == "+":
        value += " ..."
    if not isinstance(given.get("action", ""), str):  # --name and --no-name
        return f"`{name}`, `--no-{name.strip('-')}`"
    return f"`{f'{name} {value}'.strip()}`"


def _meaning(argument: Argument) -> str:
    text = _plain(argument.given["help"])
    if argument.given.get("action") == "append" and "several times" not in text:
        text += "; may be repeated"
    if argument.given.get("required"):
        text = f"**required**; {text}"
    return text.replace("%%", "%")


def _positional(arguments: Iterable[Argument]) -> Iterator[str]:
    for argument in arguments:
        if not argument.names[0].startswith("-"):
            text = _placeholder(argument)
            yield f"[{text}]" if argument.given.get("nargs") == "?" else text


def _placeholder(argument: Argument) -> str:
    choices = "|".join(argument.given.get("choices", ()))
    return str(argument.given.get("metavar") or choices or argument.names[0].upper())


def exit_codes() -> str:
    """Return the table of the exit codes."""
    texts = texts_below(Exit)
    rows = [[int(code), texts[code.name]] for code in Exit]
    rows.append([_RESTART, "A worker ended by itself. Start it again."])
    return table(["code", "meaning"], [[f"`{code}`", str(text)] for code, text in sorted(rows)])


def settings() -> str:
    """Return the table of all settings."""
    types = get_type_hints(Config)
    replaceable = {name for command in commands_of() for name in command.settings}
    rows = []
    for setting in fields(Config):
        facts, name = setting.metadata, setting.name
        kind = {str: "text", int: "integer", float: "number"}[types[name]]
        if facts["choices"]:
            kind = ", ".join(f"`{choice}`" for choice in facts["choices"] if choice)
        elif facts["path"]:
            kind = "path"
        elif facts["secret"]:
            kind = "secret"
        option = f"`--{name.replace('_', '-')}`" if name in replaceable else ""
        variable = f"`TURNSTILE_{name.upper()}`" + (" (`_FILE`)" if facts["file"] else "")
        default = "" if setting.default == "" else f"`{setting.default}`"
        rows.append([variable, option, kind, default, _plain(facts["help"])])
    return table(["variable", "option", "type", "default", "meaning"], rows)


def input_keys() -> str:
    """Return the table of the keys of ``[input]`` in a file of queries."""
    return table(["key", "default", "meaning"], _keys(EventSource))


def query_keys() -> str:
    """Return the table of the keys of ``[[query]]``, with the kinds of queries that have each."""
    rows = []
    for name, default, meaning in _keys(Query):
        key = name.strip("`").split(", ")[0]
        needs = [f"**{one}**" for one, kind in KINDS.items() if key in kind.needs]
        takes = [one for one, kind in KINDS.items() if key in kind.takes and key not in kind.needs]
        rows.append([name, ", ".join([*needs, *takes]) or "all", default, meaning])
    return table(["key", "kinds", "default", "meaning"], rows)


def _keys(kind: type[FileTable]) -> Iterator[list[str]]:
    """Yield each key of a table of a file, its default, and its meaning from the docstring."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    listed = (getdoc(kind) or "").partition("Attributes:\n")[2]
    for item in items(listed).splitlines():
        name, _, meaning = item.removeprefix("- ").partition(": ")
        field = fields[name.strip("`").split(", ")[0]]
        default = getattr(field.default, "text", field.default)
        shown = f"`{default}`" if isinstance(default, str | int) and default else ""
        yield [name, "required" if field.required else shown, meaning.removesuffix(".")]


# --- metrics ------------------------------------------------------------------------------------


def worker_metrics() -> str:
    """Return the table of a worker's metrics."""
    measured = Metrics("log")
    record: Any = SimpleNamespace(timestamp=0)
    rejected = encode({"reason": Reason.MALFORMED})
    measured.committed(0, [record], [Output(Channel.REJECTS, None, rejected)], 0.0)
    view = SimpleNamespace(partition=0, state="running", next=0, end=0, waiting=0.0)
    owned: Any = SimpleNamespace(count=1, views=lambda: [view])
    collector = PartitionsCollector("turnstile.norms", "turnstile.worker", owned)
    return _metrics([*measured._registry.collect(), *collector.collect()])


def answerer_metrics() -> str:
    """Return the table of an answerer's metrics."""
    calendar = SimpleNamespace(next=SimpleNamespace(closes=0))
    progress: Any = SimpleNamespace(
        state=SimpleNamespace(skipped={"late": 1}, positions={0: 0}, keeps=0, calendar=calendar),
        is_taken_over=True,
        end_of=lambda partition: 0,
        partitions=lambda: [0],
        source=lambda: ("topic", "events"),
        clock=lambda: 0,
    )
    return _metrics(AnswererMetrics(progress, "log").registry.collect())


def client_metrics() -> str:
    """Return the table of the metrics of a measured client."""
    registry = CollectorRegistry()
    observers: list[Observer] = []
    client = SimpleNamespace(log_name="log", observe=observers.append)
    measure(cast(Any, client), registry)
    with observers[0].asking("charge"):
        pass
    return _metrics(registry.collect())


def _metrics(families: Iterable[Metric]) -> str:
    rows = []
    for family in families:
        if family.name.startswith("process_"):
            continue
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = sorted(
            {name for sample in family.samples for name in sample.labels} - {"le", "log"}
        )
        kind = "gauge" if family.type == "info" else family.type
        name, text = f"`{family.name}{suffix}`", f"{family.documentation}."
        rows.append([name, kind, ", ".join(labels), text])
    return table(["metric", "type", "labels", "meaning"], rows)


# --- reasons ------------------------------------------------------------------------------------


def halts() -> str:
    """Return the table of the reasons for a HALT."""
    rows = [
        [
            f"`{OWN_BUDGET}` to `{min(HALT_REASONS) - 1}`",
            f"`{BUDGET}`",
            "The budget is too small for the step; under clip, the budget is empty. The byte is "
            "the index in `budgets`: 0 is the charged dataset, 1 its parent.",
        ],
        *([f"`{byte}`", f"`{why.name}`", why.meaning] for byte, why in HALT_REASONS.items()),
    ]
    return table(["byte in `reasons`", "`reason`", "meaning"], rows)


def rejections() -> str:
    """Return the table of the reasons for a rejection."""
    rows = [[f"`{reason}`", text] for reason, text in reason_texts().items()]
    return table(["reason", "meaning"], rows)


def suspensions() -> str:
    """Return the table of the reasons for a suspension, with links to their runbooks."""
    texts = texts_below(SuspensionReason)
    rows = []
    for reason in SuspensionReason:
        remedy = f"[runbook](../operate/runbooks.md#{reason})"
        if reason is SuspensionReason.RESTORING:
            remedy = "wait"
        rows.append([f"`{reason}`", texts[reason.name], remedy])
    return table(["reason", "meaning", "remedy"], rows)


def endings() -> str:
    """Return the table of the reasons for which a worker ends by itself."""
    return _members(Ending)


def _members(kind: type[Enum]) -> str:
    texts = texts_below(kind)
    return table(["reason", "meaning"], [[f"`{one.value}`", texts[one.name]] for one in kind])


# --- topics, limits, measures -------------------------------------------------------------------

_CONTENTS = {
    NORMS: "requests; the source of truth",
    SNAPSHOTS: "snapshots of the state, which replace a lost Redis and a trimmed log",
    HALTS: "decisions with their HALT events, and answers to other requests",
    ODOMETER: "odometer records: upper bounds on what users have spent",
    REJECTS: "rejected requests with their reasons",
    ANSWERS: "private answers, as JSON; public",
}


def topics() -> str:
    """Return the table of the topics."""
    every = {**SETTINGS, **ANSWER_SETTINGS}
    rows = []
    for topic, given in every.items():
        contents = _CONTENTS.get(topic, "the journal of answerers")
        required, others = [], []
        for name, value in given.items():
            listed = required if _is_required(topic, name) else others
            listed.append(f"`{name}={value}`")
        shown = [", ".join(required), ", ".join(others)]
        rows.append([f"`{Config().topic(topic)}`", contents, _retention(given), *shown])
    header = ["topic", "contents", "retention", "required settings", "other settings"]
    return table(header, rows)


def _is_required(topic: str, setting: str) -> bool:
    if topic in SETTINGS:
        return (topic, setting) not in WISHES
    return setting in ANSWER_NEEDS


def _retention(given: dict[str, str]) -> str:
    if given.get("cleanup.policy") == "compact":
        return "the last record of each key"
    kept = int(given.get("retention.ms", "-1"))
    return "unlimited" if kept < 0 else f"{kept // _DAY_MS} days"


def limits() -> str:
    """Return the table of the fixed limits."""
    rows: list[tuple[str, int, str]] = [
        ("bytes of a record that a client sends or a worker publishes", MAX_RECORD_BYTES,
         "per record of `norms`, `halts`, `odometer` and `rejects`"),
        ("bytes of a request", MAX_REQUEST_BYTES,
         "in a budget file, or if the topic `norms` takes more than by default"),
        ("bytes of an event", EVENT_BYTES, "per record of an answerer's input"),
        ("users of a charge or an enrolment", MAX_CHARGE_USERS, "per record"),
        ("bytes of a decision about named users", MAX_ANSWER_BYTES, "in all its parts"),
        ("accounts that a step changes", MAX_ACCOUNTS, "users times budgets, per partition"),
        ("balances that a step changes", MAX_BALANCES,
         "users times orders over all budgets, per partition"),
        ("rosters of open runs that share a budget", MAX_ROSTERS, "per log"),
        ("datasets", MAX_DATASETS, "per log"),
        ("bytes of the names of all datasets, and 3 more for each", MAX_NAMES_BYTES, "per log"),
        ("budgets that a charge draws on", MAX_BUDGETS, "the dataset's and its ancestors'"),
        ("keys of an access list", MAX_KEYS, "per dataset"),
        ("minimum separation of a run", MAX_SEPARATION, "steps"),
        ("norm levels of a roster", MAX_LEVELS, "above level 0"),
        ("budget", MAX_BUDGET_UNITS >> UNIT_BITS, "in the unit of the measure"),
        ("partitions", _MOST_PARTITIONS, "per log"),
        ("labels of a grouped query", MOST_LABELS, "per query"),
        ("panes of a window", MOST_PANES, "a sliding window's length divided by its step"),
        ("days for which a portal link is valid", MOST_DAYS, "per link"),
    ]  # fmt: skip
    return table(["limit", "maximum", "scope"], [[a, f"{n:,}", c] for a, n, c in rows])


_MECHANISMS: dict[str, tuple[Mechanism, str]] = {
    "Gaussian": (Gaussian(1.0), "gaussian"),
    "Laplace": (Laplace(1.0), "laplace"),
    "PureDP": (PureDP(), "pure-dp"),
    "PoissonGaussian": (PoissonGaussian(1.0, 0.5), "poisson-gaussian"),
    "PoissonRecords": (PoissonRecords(1.0, 0.5, 2), ""),
}


def mechanisms() -> str:
    """Return the table of the measures that can charge each mechanism, and how."""
    measures: list[Measure] = [*MEASURES.values(), steps_measure(StepShape(1.0, 1.0))]
    rows = [
        [f"`{name}`", *(_ways(measure, *mechanism) for measure in measures)]
        for name, mechanism in _MECHANISMS.items()
    ]
    return table(["mechanism", *(f"`{measure.name}`" for measure in measures)], rows)


def _ways(measure: Measure, mechanism: Mechanism, wire: str) -> str:
    ways = []
    if measure.covers(mechanism):
        ways.append("units")
    if measure.covers_by_table(mechanism):
        ways.append("table")
    if wire in MECHANISMS and measure.covers(mechanism):
        ways.append("users")
    if wire in _roster_mechanisms() and measure.covers_by_table(mechanism):
        ways.append("roster")
    return ", ".join(ways) or "no"


def _roster_mechanisms() -> set[str]:
    single, unions = set(), [RosterMechanism]
    while unions:
        for one in get_args(unions.pop()):
            if isinstance(one, str):
                single.add(one)
            else:
                unions.append(one)
    return single


def _plain(text: str) -> str:
    """Return a text of the help in Markdown."""
    return text.replace("*", "\\*").replace("<", "&lt;")
