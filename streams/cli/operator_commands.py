"""The commands for operators: status, diagnosis, trimming, rights and keys."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

from streams.cli.commands import command
from streams.cli.dataset_commands import show_datasets
from streams.cli.options import (
    CLIENT,
    EPSILONS_AT_DELTA,
    FILE_OBSERVER,
    OBSERVER,
    WORKERS,
    arg,
    flag,
)
from streams.cli.printing import note, plain, say, show, tell
from streams.config import Config, ConfigurationError, Unavailable, release
from streams.failures import Exit
from streams.kafka.access import GROUP, ROLES, TOPIC, TRANSACTIONS, AccessRule, rules_of
from streams.operations.check_tables import Level
from streams.operations.doctor import examine
from streams.operations.status import Overview, PartitionState, read_overview
from streams.records import signatures
from streams.store.rights import rights

_PARTITION = {
    **{name: name for name in ("partition", "owner", "next", "lag", "users", "snapshot")},
    "seen": "seen, s ago",
    "state": "state",
}
_WATCHED_EVERY = 2.0  # seconds
_CLEAR = "\x1b[H\x1b[2J"  # cursor to the top left, and an empty screen


@command(
    "status",
    FILE_OBSERVER,
    EPSILONS_AT_DELTA,
    flag("--watch", "show it again every two seconds, until Ctrl-C"),
    lines=("partition",),
)
def status(options: argparse.Namespace, config: Config) -> int:
    """Show each partition's state, owner, lag and users, and the datasets.

    Exit code 69 if a partition is not decided. `turnstile dataset list --json` has the datasets.
    """
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
    show("partition", seen.partitions, options.json, _PARTITION)
    if not options.json:
        alike: dict[tuple[str, ...], list[int]] = {}
        for one in wrong:
            texts = one.state.value, plain(one.problem), plain(one.remedy)
            alike.setdefault(texts, []).append(one.partition)
        for (state, problem, remedy), numbers in alike.items():
            of = (
                f"s {', '.join(map(str, numbers))} are each" if numbers[1:] else f" {numbers[0]} is"
            )
            say("")
            tell(f"partition{of} {state}: {problem}")
            tell(f"-> {remedy}")
        if seen.datasets:
            say("")
            show_datasets(seen.datasets, options.delta, False)
    return Exit.UNAVAILABLE if wrong else Exit.OK


@command(
    "doctor",
    OBSERVER,
    WORKERS,
    arg(
        "--answerer HOST:PORT",
        "the --health address of an answerer; may be given several times",
        action="append",
    ),
    lines=("finding",),
)
def doctor(options: argparse.Namespace, config: Config) -> int:
    """Find problems and risks of the service, with remedies.

    It asks Kafka, Redis, the workers and this machine, and changes nothing. Exit code 1 if
    something is wrong; warnings do not count.
    """
    addresses = options.worker or ([config.health] if config.health else [])
    found = examine(config, addresses, release(), options.answerer or [])
    wrong = sum(one.level is Level.WRONG for one in found)
    if options.json:
        show("finding", found, True)
        return Exit.REFUSED if wrong else Exit.OK
    for area, findings in groupby(found, key=lambda finding: finding.area):
        say(area)
        for finding in findings:
            tell(f"- {finding.level}: {plain(finding.what)}")
            for text in (finding.means, finding.do and f"-> {finding.do}"):
                if text and finding.level is not Level.OK:
                    tell(f"  {plain(text)}")
        say("")
    warnings = sum(one.level is Level.WARNING for one in found)
    counts = [f"{wrong} wrong"] if wrong else ["Nothing is wrong"]
    if warnings:
        counts.append(f"{warnings} {'warning' if warnings == 1 else 'warnings'}")
    say(f"{', '.join(counts)}.")
    return Exit.REFUSED if wrong else Exit.OK


@command("trim", CLIENT, flag("--dry-run", "only show what would be deleted"), lines=("trim",))
def trim_log(options: argparse.Namespace, config: Config) -> int:
    """Delete the records of the log that a snapshot covers.

    The last snapshot of each partition is read and verified first. Records that it does not cover
    remain. If anything is wrong with it, nothing is deleted, and the exit code is 1.
    """
    from streams.operations.trimming import plan_trims, trim

    is_wrong, rows = False, []
    for planned in plan_trims(config):
        is_wrong |= planned.is_wrong
        if planned.records and not options.dry_run:
            trim(config, planned)
        rows.append(
            {
                "partition": planned.partition,
                "log_start": planned.start,
                "log_end": planned.end,
                "snapshot": planned.snapshot,
                "would_delete" if options.dry_run else "deleted": planned.records,
                "log_begins_at": planned.start if options.dry_run else planned.before,
                "why_not_more": planned.why,
            }
        )
    show("trim", rows, options.json)
    return Exit.REFUSED if is_wrong else Exit.OK


Principals: TypeAlias = Mapping[str, Sequence[str]]
"""The principals of each role."""

_STRIMZI = {TOPIC: "topic", GROUP: "group", TRANSACTIONS: "transactionalId"}


@command(
    "acl",
    ("kafka", "prefix", "timeout", "config"),
    arg(
        "--principal ROLE=User:NAME",
        "a principal with this role; may be given several times. Roles: " + ", ".join(ROLES),
        action="append",
    ),
    arg("--format", "", choices=("table", "strimzi", "redis"), default="table", rivals="what"),
    flag("--apply", "grant the rights on Kafka", rivals="what"),
    lines=("right", "granted_rights"),
)
def acl(options: argparse.Namespace, config: Config) -> int:
    """Print or grant the rights of each role on Kafka and Redis.

    Without --principal, each role has one principal with the name of the role. --apply grants the
    rights as the user in the settings, who must be a super user.
    """
    principals: Principals = {role: [role] for role in ROLES}
    if options.principal:
        principals = {
            role: [name for of, name in options.principal if of == role]
            for role in dict.fromkeys(role for role, _ in options.principal)
        }
    rules = [
        (role, f"User:{name}", rule)
        for role, names in principals.items()
        for name in names
        for rule in rules_of(role, config.prefix)
    ]
    if options.apply:
        return _apply(config, rules, options.json)
    if options.json or options.format == "table":
        rows = (
            {
                "role": role,
                "principal": principal,
                "resource": rule.resource,
                "name": rule.name,
                "pattern": "prefixed" if rule.prefixed else "literal",
                "operations": list(rule.operations),
            }
            for role, principal, rule in rules
        )
        show("right", rows, options.json)
        return Exit.OK
    for text in (_strimzi if options.format == "strimzi" else _redis)(config, principals):
        print(text)
    return Exit.OK


def _apply(config: Config, rules: Iterable[tuple[str, str, AccessRule]], as_json: bool) -> int:
    from streams.kafka.granting import grant

    granted: dict[str, list[AccessRule]] = {}
    for _, principal, rule in rules:
        granted.setdefault(principal, []).append(rule)
    count = grant(config, granted)
    shown = {"kafka": config.kafka, "principals": list(granted), "rights": count}
    show("granted_rights", shown, as_json)
    note("these principals keep their earlier rights; kafka-acls --remove removes them")
    return Exit.OK


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


_KEY_SETTINGS = {
    "decisions": ("signing_key", "trusted_keys", "decisions: show it to the workers only"),
    "answers": (
        "signing_key",
        "answer_keys",
        "private answers: show it to the answerer only, and put it into no trusted_keys",
    ),
    "requests": (
        "request_key",
        "public_key",
        "requests of this client: show it to that client only",
    ),
}
"""By purpose: the settings of the private and of the public key, and who may have the first."""


@command(
    "keys new",
    (),
    arg(
        "--for",
        "what it signs: workers' decisions, an answerer's answers or a client's requests",
        dest="purpose",
        choices=("decisions", "answers", "requests"),
        default="decisions",
    ),
    arg("--out FILE", "a new file for the private key, readable by its owner only"),
    lines=("keys",),
)
def new_keys(options: argparse.Namespace, config: Config) -> int:
    """Create a private key, and the public key for those who check its signatures.

    An existing file is not overwritten.
    """
    private, public = signatures.new_keys()
    secret, shown, who = _KEY_SETTINGS[options.purpose]
    pair = {"id": signatures.id_of(public), shown: public}
    if options.out is None:
        pair[secret] = private
        note(f"{secret} can sign {who}")
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
