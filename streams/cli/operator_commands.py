"""The commands for operators: status, diagnosis, trimming, rights and keys."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, TypeAlias

from streams.cli.dataset_commands import show_datasets
from streams.cli.printing import Exit, note, plain, say, show, show_all
from streams.config import Config, ConfigurationError, Unavailable, lacking, release
from streams.kafka.access import GROUP, ROLES, TOPIC, TRANSACTIONS, AccessRule, rules_of
from streams.operations.check_tables import Finding, Level
from streams.operations.doctor import examine
from streams.operations.status import Overview, PartitionState, read_overview
from streams.operations.trimming import plan_trims, trim
from streams.records import signatures
from streams.store.rights import rights

_PARTITION_COLUMNS = ("partition", "owner", "next", "lag", "users", "snapshot", "seen", "state")


_WATCHED_EVERY = 2.0  # seconds
_CLEAR = "\x1b[H\x1b[2J"  # cursor to the top left, and an empty screen


def status(options: argparse.Namespace, config: Config) -> int:
    """Show every partition and, for people, every dataset; with --watch until Ctrl-C."""
    while options.watch:
        try:
            seen = read_overview(config)
        except Unavailable as error:
            note(error)  # an outage is what is watched for: ask again
        else:
            if sys.stdout.isatty():
                say(_CLEAR)
            _show_status(seen, options)
        time.sleep(_WATCHED_EVERY)
    return _show_status(read_overview(config), options)


def _show_status(seen: Overview, options: argparse.Namespace) -> int:
    """Show the state of a service, and return the exit code."""
    wrong = [one for one in seen.partitions if one.state is not PartitionState.DECIDING]
    rows = [
        asdict(one) if options.json else {**asdict(one), "seen": _seconds_ago(one.seen)}
        for one in seen.partitions
    ]
    show_all("partition", rows, _PARTITION_COLUMNS, options.json)
    if not options.json:
        alike: dict[tuple[str, ...], list[int]] = {}
        for one in wrong:
            texts = one.state.value, plain(one.problem), plain(one.remedy)
            alike.setdefault(texts, []).append(one.partition)
        for (state, problem, remedy), numbers in alike.items():
            of = (
                f"s {', '.join(map(str, numbers))} are each" if numbers[1:] else f" {numbers[0]} is"
            )
            say(f"\npartition{of} {state}: {problem}\n-> {remedy}")
        if seen.datasets:
            say("")
            show_datasets(seen.datasets, options.delta, False)
    return Exit.UNAVAILABLE if wrong else Exit.OK


def _seconds_ago(seconds: int | None) -> str | None:
    return None if seconds is None else f"{seconds} s ago"


_MARKS = {Level.OK: "ok", Level.WARNING: "warning", Level.WRONG: "WRONG"}
_COLOURS = {Level.OK: "32", Level.WARNING: "33", Level.WRONG: "1;31"}
_INDENT = 11  # the column where findings begin
_WIDEST = 100


def doctor(options: argparse.Namespace, config: Config) -> int:
    """Examine the service and print the findings; exit code 1 if something is wrong."""
    addresses = options.worker or ([config.health] if config.health else [])
    found = examine(config, addresses, release(), options.answerer or [])
    if options.json:
        for finding in found:
            show("finding", asdict(finding), True)
    else:
        _print_findings(found)
    return Exit.REFUSED if any(one.level is Level.WRONG for one in found) else Exit.OK


def _print_findings(found: Sequence[Finding]) -> None:
    for area, findings in groupby(found, key=lambda finding: finding.area):
        say(_in_colour("1", area))
        for finding in findings:
            mark = _in_colour(_COLOURS[finding.level], f"{_MARKS[finding.level]:<7}")
            first, *rest = _wrapped(finding.what)
            say(f"  {mark}  {first}")
            for line in rest:
                say(f"{'':{_INDENT}}{line}")
            if finding.level is Level.OK:
                continue
            for line in _wrapped(finding.means):
                say(f"{'':{_INDENT}}{line}")
            for number, line in enumerate(_wrapped(finding.do)):
                say(f"{'':{_INDENT - 3}}{'->' if number == 0 else '  '} {line}")
        say("")
    say(_conclusion(found))


def _conclusion(found: Sequence[Finding]) -> str:
    wrong = sum(one.level is Level.WRONG for one in found)
    warnings = sum(one.level is Level.WARNING for one in found)
    if not wrong + warnings:
        return "Nothing is wrong."
    result = "Nothing is wrong" if not wrong else f"{wrong} wrong"
    return f"{result}, {warnings} {'warning' if warnings == 1 else 'warnings'}."


def _wrapped(text: str) -> list[str]:
    width = min(_WIDEST, get_terminal_size((_WIDEST, 24)).columns) - _INDENT
    # Commands are copied from here, so they are not broken.
    return textwrap.wrap(
        plain(text), max(20, width), break_long_words=False, break_on_hyphens=False
    ) or [""]


def _in_colour(code: str, text: str) -> str:
    is_shown = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return f"\x1b[{code}m{text}\x1b[0m" if is_shown else text


def trim_log(options: argparse.Namespace, config: Config) -> int:
    """Show what can be deleted of each partition, and delete it unless --dry-run is given."""
    is_wrong = False
    for planned in plan_trims(config):
        is_wrong |= planned.is_wrong
        if planned.records and not options.dry_run:
            trim(config, planned)
        show(
            "trim",
            {
                "partition": planned.partition,
                "log_start": planned.start,
                "log_end": planned.end,
                "snapshot": planned.snapshot,
                "would_delete" if options.dry_run else "deleted": planned.records,
                "log_begins_at": planned.start if options.dry_run else planned.before,
                "why_not_more": planned.why,
            },
            options.json,
        )
    return Exit.REFUSED if is_wrong else Exit.OK


Principals: TypeAlias = Mapping[str, Sequence[str]]
"""The principals of each role."""

_STRIMZI = {TOPIC: "topic", GROUP: "group", TRANSACTIONS: "transactionalId"}


def acl(options: argparse.Namespace, config: Config) -> int:
    """Show or grant the rights of each role."""
    principals = _principals(options.principal)
    if options.apply:
        return _apply(config, principals, options.json)
    if options.json or options.format == "table":
        for line in _table(config, principals):
            show("right", line, options.json)
        return Exit.OK
    for text in _ACL_FORMATS[options.format](config, principals):
        print(text)
    return Exit.OK


def _principals(given: Iterable[tuple[str, str]] | None) -> Principals:
    """Return the named principals by role; without any, each role has one with its own name."""
    if not given:
        return {role: [role] for role in ROLES}
    named: dict[str, list[str]] = {}
    for role, name in given:
        named.setdefault(role, []).append(name)
    return named


def _rules(config: Config, principals: Principals) -> Iterator[tuple[str, str, AccessRule]]:
    for role, names in principals.items():
        for name in names:
            for rule in rules_of(role, config.prefix):
                yield role, name, rule


def _apply(config: Config, principals: Principals, as_json: bool) -> int:
    from streams.kafka.granting import grant

    granted: dict[str, list[AccessRule]] = {}
    for _, name, rule in _rules(config, principals):
        granted.setdefault(f"User:{name}", []).append(rule)
    count = grant(config, granted)
    shown = {"kafka": config.kafka, "principals": list(granted), "rights": count}
    show("granted_rights", shown, as_json)
    note("these principals keep their earlier rights; kafka-acls --remove removes them")
    return Exit.OK


def _table(config: Config, principals: Principals) -> Iterator[dict[str, Any]]:
    for role, name, rule in _rules(config, principals):
        yield {
            "role": role,
            "principal": f"User:{name}",
            "resource": rule.resource,
            "name": rule.name,
            "pattern": "prefixed" if rule.prefixed else "literal",
            "operations": list(rule.operations),
        }


def _strimzi(config: Config, principals: Principals) -> Iterator[str]:
    """Yield one KafkaUser for each principal."""
    for role, names in principals.items():
        for name in names:
            yield "---\napiVersion: kafka.strimzi.io/v1\nkind: KafkaUser"
            yield f"metadata:\n  name: {name}\n  labels:\n    strimzi.io/cluster: CLUSTER"
            yield "spec:\n  authentication:\n    type: scram-sha-512"
            yield "  authorization:\n    type: simple\n    acls:"
            for rule in rules_of(role, config.prefix):
                pattern = "prefix" if rule.prefixed else "literal"
                yield f"      - resource:\n          type: {_STRIMZI[rule.resource]}"
                yield f"          name: {rule.name}\n          patternType: {pattern}"
                yield f"        operations: [{', '.join(rule.operations)}]"


def _redis(config: Config, principals: Principals) -> Iterator[str]:
    """Yield one line for each principal, for an ACL file or for ACL SETUSER in redis-cli."""
    yield "# without a login, no command is allowed"
    yield "user default off"
    for role, names in principals.items():
        use = ROLES[role].redis
        for name in names:
            if use is not None:
                yield f"user {name} on >PASSWORD {' '.join(rights(use, config.prefix))}"


_ACL_FORMATS: Mapping[str, Callable[[Config, Principals], Iterator[str]]] = {
    "strimzi": _strimzi,
    "redis": _redis,
}


_KEY_SETTINGS = {
    # what is signed: the settings of the private and of the public key, who is to have the former
    "decisions": (
        "signing_key",
        "trusted_keys",
        "can sign decisions: show it to the workers only",
    ),
    "answers": (
        "signing_key",
        "answer_keys",
        "can sign private answers: show it to the answerer only, and put it into no trusted_keys",
    ),
    "requests": (
        "request_key",
        "public_key",
        "can sign requests of this client: show it to that client only",
    ),
}


def new_keys(options: argparse.Namespace, config: Config) -> int:
    """Create a pair of keys, and store the private one if a file is given."""
    try:
        private, public = signatures.new_keys()
    except ImportError as error:
        raise lacking("a new key", "secure", error) from error
    secret, shown, who = _KEY_SETTINGS[options.purpose]
    pair = {"id": signatures.id_of(public), shown: public}
    if options.out is None:
        pair[secret] = private
        note(f"{secret} {who}")
    else:
        write_secret(options.out, private)
        pair[f"{secret}_file"] = str(options.out)
    show("keys", pair, options.json)
    return Exit.OK


def write_secret(path: Path, secret: str) -> None:
    """Write a new file that only its owner can read.

    Raises:
        ConfigurationError: the file exists already, or cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigurationError(f"cannot create {path}: {error}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{secret}\n")
