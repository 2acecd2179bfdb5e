"""The compose file, held against the Compose Specification and against this repository.

The engine itself is not run here. The schema comes with the package check-jsonschema.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import jsonschema
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema

from streams.config import Config, environment_names
from streams.kafka.topics import SETTINGS
from tests.readme import DOCUMENTS, TOP

COMPOSE: dict[str, Any] = yaml.safe_load((TOP / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
KAFKA, REDIS, WORKER = SERVICES["kafka"], SERVICES["redis"], SERVICES["worker"]
PARTS = {name: service for name, service in SERVICES.items() if name not in ("kafka", "redis")}
OPTIONAL = PARTS.keys() - {"worker"}
BROKER: dict[str, str] = KAFKA["environment"]


def listeners(name: str) -> dict[str, tuple[str, int]]:
    """The value of a listener setting: name -> (host, port)."""
    found = re.findall(r"(\w+)://([^:,]*):(\d+)", BROKER[name])
    return {listener: (host, int(port)) for listener, host, port in found}


def pairs(command: list[str]) -> dict[str, str]:
    """The options of a Redis command line."""
    return dict(zip(command[1::2], command[2::2], strict=True))


def test_file_is_valid_under_the_compose_specification() -> None:
    schema = get_builtin_schema("vendor.compose-spec")
    errors = jsonschema.Draft7Validator(schema).iter_errors(COMPOSE)
    assert [error.message for error in errors] == []


def test_pages_listen_on_the_loopback_address_of_the_host() -> None:
    for name in ("dashboard", "gateway", "portal"):
        part = PARTS[name]
        assert part["network_mode"] == "host"
        (address,) = (
            given
            for option, given in zip(part["command"], part["command"][1:], strict=False)
            if option == "--listen"
        )
        assert address.startswith("127.0.0.1:")
        assert f"http://{address}/" in part["healthcheck"]["test"][-1]


@pytest.mark.parametrize(
    ("image", "variable", "name"),
    [
        (KAFKA["image"], "KAFKA_IMAGE", "apache/kafka"),
        (REDIS["image"], "REDIS_IMAGE", "redis"),
        (WORKER["build"]["args"]["PYTHON_IMAGE"], "PYTHON_IMAGE", "python"),
    ],
    ids=["kafka", "redis", "python"],
)
def test_an_image_has_a_version_and_can_be_given_by_digest(
    image: str, variable: str, name: str
) -> None:
    assert re.fullmatch(rf"\$\{{{variable}:-{name}:\d+\.\d+[\w.-]*@sha256:[0-9a-f]{{64}}\}}", image)


@pytest.mark.parametrize("name", SERVICES)
def test_environment_values_are_strings(name: str) -> None:
    # YAML would turn a bare `false` or `1` into what the container sees differently.
    assert all(isinstance(value, str) for value in SERVICES[name].get("environment", {}).values())


def test_ports_are_published_on_the_loopback_address_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:9092:9092", "127.0.0.1:6379:6379"]


# --- Kafka --------------------------------------------------------------------------------------


def test_host_and_containers_are_sent_to_addresses_they_can_reach() -> None:
    advertised, bound = listeners("KAFKA_ADVERTISED_LISTENERS"), listeners("KAFKA_LISTENERS")
    assert advertised["HOST"] == ("localhost", 9092)
    assert f"127.0.0.1:{advertised['HOST'][1]}:{bound['HOST'][1]}" in KAFKA["ports"]
    assert Config().kafka == "localhost:9092"
    assert advertised["INTERNAL"] == (KAFKA["hostname"], bound["INTERNAL"][1])
    assert WORKER["environment"]["TURNSTILE_KAFKA"] == "{}:{}".format(*advertised["INTERNAL"])
    assert BROKER["KAFKA_INTER_BROKER_LISTENER_NAME"] == "INTERNAL"
    protocols = dict(
        pair.split(":") for pair in BROKER["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
    )
    assert protocols.keys() == bound.keys()
    assert len({port for _, port in bound.values()}) == len(bound)


@pytest.mark.parametrize(
    "setting",
    ["KAFKA_MESSAGE_MAX_BYTES", "KAFKA_REPLICA_FETCH_MAX_BYTES", "KAFKA_SOCKET_REQUEST_MAX_BYTES"],
)
def test_broker_admits_the_largest_record_of_any_topic(setting: str) -> None:
    largest = max(int(topic.get("max.message.bytes", 0)) for topic in SETTINGS.values())
    assert largest > 0
    assert int(BROKER[setting]) >= largest


def test_log_survives_the_container() -> None:
    assert KAFKA["volumes"] == [f"kafka-data:{BROKER['KAFKA_LOG_DIRS']}"]
    assert BROKER["KAFKA_UNCLEAN_LEADER_ELECTION_ENABLE"] == "false"


# --- Redis --------------------------------------------------------------------------------------


def test_redis_keeps_what_it_is_given() -> None:
    assert REDIS["command"][0] == "redis-server"
    options = pairs(REDIS["command"])
    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] == "everysec"
    assert options["--maxmemory-policy"] == "noeviction"
    assert REDIS["volumes"] == ["redis-data:/data"]


def test_every_named_volume_is_declared() -> None:
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", [])]
    named = {mount.split(":")[0] for mount in mounts if not mount.startswith("$")}
    assert named == COMPOSE["volumes"].keys()


# --- worker -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PARTS)
def test_parts_wait_until_broker_and_redis_answer(name: str) -> None:
    assert PARTS[name]["depends_on"] == {
        server: {"condition": "service_healthy"} for server in ("kafka", "redis")
    }
    assert all("test" in SERVICES[name]["healthcheck"] for name in ("kafka", "redis"))


def test_worker_settings_are_settings_of_the_code() -> None:
    environment = WORKER["environment"]
    known = {f"TURNSTILE_{setting.name.upper()}" for setting in fields(Config)}
    assert environment.keys() <= known
    config = Config.load(environment=environment)
    assert config.kafka == "kafka:19092"
    assert config.redis == "redis://redis:6379/0"
    assert (config.partitions, config.replication) == (4, 1)


@pytest.mark.parametrize("name", sorted(OPTIONAL))
def test_settings_of_other_parts_reach_the_servers(name: str) -> None:
    environment = PARTS[name]["environment"]
    given = {key: "" if "$" in value else value for key, value in environment.items()}
    assert given.keys() <= {f"TURNSTILE_{setting.name.upper()}" for setting in fields(Config)}
    config = Config.load(environment=given)
    on_host = PARTS[name].get("network_mode") == "host"
    listener = "HOST" if on_host else "INTERNAL"
    host, port = listeners("KAFKA_ADVERTISED_LISTENERS")[listener]
    assert config.kafka == f"{host}:{port}"


def test_parts_write_to_tmp_and_their_volumes_only() -> None:
    assert REDIS["read_only"] is True
    assert REDIS["volumes"] == ["redis-data:/data"]
    for part in PARTS.values():
        assert part["read_only"] is True
        assert part["tmpfs"] == ["/tmp"]
    assert PARTS["portal"]["volumes"] == ["portal-state:/state"]
    assert all(mount.endswith(":ro") for mount in PARTS["answerer"]["volumes"])


def test_no_service_can_gain_privileges() -> None:
    for service in (KAFKA, *PARTS.values()):
        assert service["cap_drop"] == ["ALL"]
    for service in SERVICES.values():
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_settings_named_in_the_documentation_exist() -> None:
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS if path.name != "CHANGELOG.md"]
    named = set(re.findall(r"\bTURNSTILE_[A-Z_]*[A-Z]", " ".join(texts)))
    assert len(named) > 20
    assert {name.removesuffix("_FILE") for name in named} <= environment_names()
