"""`turnstile acl`: the rights of each role, printed, as commands or manifests, or given."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from streams.cli.output import Exit, note, show
from streams.config import Config
from streams.kafka.access import GROUP, ROLES, TOPIC, TRANSACTIONS, AccessRule, rules_of
from streams.store.rights import rights

Principals: TypeAlias = Mapping[str, Sequence[str]]
"""Of each role."""

_PRINCIPAL = re.compile(rf"({'|'.join(ROLES)})=User:([A-Za-z0-9._=, @/-]+)")
_OPTIONS = {TOPIC: "--topic", GROUP: "--group", TRANSACTIONS: "--transactional-id"}
_STRIMZI = {TOPIC: "topic", GROUP: "group", TRANSACTIONS: "transactionalId"}


def acl(options: argparse.Namespace, config: Config) -> int:
    """The rights of each role, in the form that was asked for."""
    principals = _principals(options.principal)
    if options.apply:
        return _apply(config, principals, options.json)
    if options.json or options.format == "table":
        for line in _table(config, principals):
            show(line, options.json)
        return Exit.OK
    for text in _FORMATS[options.format](config, principals):
        print(text)
    return Exit.OK


def principal(text: str) -> tuple[str, str]:
    """ROLE=User:NAME, as the role and the name."""
    found = _PRINCIPAL.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not ROLE=User:NAME with a role of {', '.join(ROLES)}"
        )
    return found[1], found[2]


def _principals(given: Iterable[tuple[str, str]] | None) -> Principals:
    """Those that are named; if none is, one of each role that is called like it."""
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
    show({"kafka": config.kafka, "principals": list(granted), "rights": count}, as_json)
    note("rights that these principals had before are still there: kafka-acls --remove takes them")
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


def _kafka_acls(config: Config, principals: Principals) -> Iterator[str]:
    """One command a rule."""
    for _, name, rule in _rules(config, principals):
        words = ["kafka-acls.sh", "--bootstrap-server", config.kafka, "--add"]
        words += ["--command-config", "admin.properties", "--allow-principal", f"User:{name}"]
        for operation in rule.operations:
            words += ["--operation", operation]
        words += [_OPTIONS[rule.resource], rule.name]
        words += ["--resource-pattern-type", "prefixed" if rule.prefixed else "literal"]
        yield shlex.join(words)


def _strimzi(config: Config, principals: Principals) -> Iterator[str]:
    """One KafkaUser a principal."""
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
    """One line of a file of users, or after ACL SETUSER in redis-cli, a principal."""
    yield "# who has no password may do nothing"
    yield "user default off"
    for role, names in principals.items():
        use = ROLES[role].redis
        for name in names:
            if use is not None:
                yield f"user {name} on >PASSWORD {' '.join(rights(use, config.prefix))}"


_FORMATS: Mapping[str, Callable[[Config, Principals], Iterator[str]]] = {
    "kafka-acls": _kafka_acls,
    "strimzi": _strimzi,
    "redis": _redis,
}
FORMATS = ("table", *_FORMATS)
