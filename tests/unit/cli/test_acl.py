"""Rights as commands, as manifests and as users of Redis are those of the table."""

from __future__ import annotations

import json
import shlex
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


def test_the_commands_give_what_the_table_says(capsys: pytest.CaptureFixture[str]) -> None:
    found = set()
    for line in lines(capsys, "--format", "kafka-acls", "--kafka", "broker:1"):
        words = shlex.split(line)
        assert words[:4] == ["kafka-acls.sh", "--bootstrap-server", "broker:1", "--add"]
        options: dict[str, list[str]] = {}
        for name, value in zip(words[4::2], words[5::2], strict=True):
            options.setdefault(name, []).append(value)
        (principal,) = options["--allow-principal"]
        (resource,) = options.keys() & {"--topic", "--group", "--transactional-id"}
        (pattern,) = options["--resource-pattern-type"]
        found |= {
            (principal, resource[2:], options[resource][0], pattern == "prefixed", operation)
            for operation in options["--operation"]
        }
    assert found == table(capsys)


def test_the_manifests_give_what_the_table_says(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_who_writes_norms_has_no_transactions_and_decides_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rights = table(capsys)
    writers = {
        who for who, _, name, _, what in rights if (name, what) == ("turnstile.norms", "Write")
    }
    deciders = {
        who for who, _, name, _, what in rights if (name, what) == ("turnstile.halts", "Write")
    }
    in_transactions = {who for who, resource, *_ in rights if resource == "transactional-id"}
    assert writers == {"User:trainer", "User:answerer"}
    assert deciders == in_transactions == {"User:worker"}
    assert {who for who, *_, what in rights if what == "Delete"} == {"User:trimmer"}


def test_several_principals_can_have_a_role_and_others_are_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ("--principal", "trainer=User:a", "--principal", "trainer=User:CN=b, O=c")
    assert {row[0] for row in table(capsys, *given)} == {"User:a", "User:CN=b, O=c"}


def test_redis_has_users_for_those_who_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    said = lines(capsys, "--format", "redis", "--prefix", "mine.")
    users = {line.split()[1]: line.split()[2:] for line in said if line.startswith("user ")}
    assert users.pop("default") == ["off"]
    assert users.keys() == {role for role, known in ROLES.items() if known.redis}
    for rights in users.values():
        assert all(word.startswith("~mine.") for word in rights if word[0] == "~")
        assert rights.index("-@all") < min(rights.index(word) for word in rights if word[0] == "+")


@pytest.mark.parametrize("text", ["trainer", "nobody=User:a", "trainer=a", "trainer=User:a;b"])
def test_a_principal_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["acl", "--principal", text])
    assert "ROLE=User:NAME" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["table", "kafka-acls", "strimzi", "redis"])
def test_no_rights_are_given_on_everything(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acl", "--prefix", "", "--format", form]) == 2
    assert "the prefix is empty" in capsys.readouterr().err
