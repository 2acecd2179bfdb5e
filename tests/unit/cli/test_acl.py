"""Manifests and Redis users grant the rights in the table of roles."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from streams.cli.main import main
from streams.kafka.access import ROLES


def lines(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert main(["acl", *options]) == 0
    return capsys.readouterr().out.splitlines()


def table(capsys: pytest.CaptureFixture[str], *options: str) -> set[tuple[Any, ...]]:
    """(principal, resource, name, prefixed, operation)"""
    return {
        (row["principal"], row["resource"], row["name"], row["pattern"] == "prefixed", operation)
        for row in map(json.loads, lines(capsys, "--json", *options))
        for operation in row["operations"]
    }


def test_strimzi_manifests_match_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"transactionalId": "transactional-id"}
    found = set()
    for user in yaml.safe_load_all("\n".join(lines(capsys, "--format", "strimzi"))):
        assert user["spec"]["authentication"]["type"] == "scram-sha-512"
        for rule in user["spec"]["authorization"]["acls"]:
            resource = rule["resource"]
            found |= {
                (
                    f"User:{user['metadata']['name']}",
                    names.get(resource["type"], resource["type"]),
                    resource["name"],
                    resource["patternType"] == "prefix",
                    operation,
                )
                for operation in rule["operations"]
            }
    assert found == table(capsys)


def test_only_workers_write_halts_and_only_trimmers_delete(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rights = table(capsys)
    writers = {
        topic: {who for who, _, name, _, what in rights if (name, what) == (topic, "Write")}
        for topic in ("turnstile.norms", "turnstile.halts")
    }
    in_transactions = {who for who, resource, *_ in rights if resource == "transactional-id"}
    assert writers["turnstile.norms"] == {"User:trainer", "User:answerer", "User:gateway"}
    assert writers["turnstile.halts"] == in_transactions == {"User:worker"}
    assert {who for who, *_, what in rights if what == "Delete"} == {"User:trimmer"}


def test_only_named_principals_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--principal", "trainer=User:a", "--principal", "trainer=User:CN=b, O=c")
    assert {row[0] for row in table(capsys, *given)} == {"User:a", "User:CN=b, O=c"}


def test_redis_users_match_the_roles(capsys: pytest.CaptureFixture[str]) -> None:
    said = lines(capsys, "--format", "redis", "--prefix", "mine.")
    users = {line.split()[1]: line.split()[2:] for line in said if line.startswith("user ")}
    assert users.pop("default") == ["off"]
    assert users.keys() == {role for role, known in ROLES.items() if known.redis}
    for rights in users.values():
        assert all(word.startswith("~mine.") for word in rights if word[0] == "~")
        assert rights.index("-@all") < min(rights.index(word) for word in rights if word[0] == "+")


def test_unusable_principals_and_prefixes_are_rejected() -> None:
    for text in ("trainer", "nobody=User:a", "trainer=a", "trainer=User:a;b"):
        with pytest.raises(SystemExit):
            main(["acl", "--principal", text])
    for form in ("table", "strimzi", "redis"):
        assert main(["acl", "--prefix", "", "--format", form]) == 2
