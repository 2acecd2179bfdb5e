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
from tests.readme import DOCUMENTS, TOP

COMPOSE: dict[str, Any] = yaml.safe_load((TOP / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
KAFKA, REDIS, WORKER = SERVICES["kafka"], SERVICES["redis"], SERVICES["worker"]
PARTS = {name: service for name, service in SERVICES.items() if name not in ("kafka", "redis")}
BROKER: dict[str, str] = KAFKA["environment"]


def listeners(name: str) -> dict[str, tuple[str, int]]:
    """The value of a listener setting: name -> (host, port)."""
    found = re.findall(r"(\w+)://([^:,]*):(\d+)", BROKER[name])
    return {listener: (host, int(port)) for listener, host, port in found}


def test_file_is_valid_under_the_compose_specification() -> None:
    schema = get_builtin_schema("vendor.compose-spec")
    errors = jsonschema.Draft7Validator(schema).iter_errors(COMPOSE)
    assert [error.message for error in errors] == []
    # YAML would turn a bare `false` or `1` into what the container sees differently.
    for service in SERVICES.values():
        assert all(isinstance(value, str) for value in service.get("environment", {}).values())


def test_everything_listens_on_the_loopback_address_of_the_host() -> None:
    for name in ("dashboard", "gateway", "portal"):
        part = PARTS[name]
        assert part["network_mode"] == "host"
        address = part["command"][part["command"].index("--listen") + 1]
        assert address.startswith("127.0.0.1:")
        assert f"http://{address}/" in part["healthcheck"]["test"][-1]
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:9092:9092", "127.0.0.1:6379:6379"]


def test_images_have_versions_and_can_be_given_by_digest() -> None:
    for image, variable, name in (
        (KAFKA["image"], "KAFKA_IMAGE", "apache/kafka"),
        (REDIS["image"], "REDIS_IMAGE", "redis"),
        (WORKER["build"]["args"]["PYTHON_IMAGE"], "PYTHON_IMAGE", "python"),
    ):
        version = r"\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}"
        assert re.fullmatch(rf"\$\{{{variable}:-{name}:{version}\}}", image)


def test_host_and_containers_can_reach_their_addresses() -> None:
    advertised, bound = listeners("KAFKA_ADVERTISED_LISTENERS"), listeners("KAFKA_LISTENERS")
    assert advertised["HOST"] == ("localhost", 9092)
    assert f"127.0.0.1:{advertised['HOST'][1]}:{bound['HOST'][1]}" in KAFKA["ports"]
    assert Config().kafka == "localhost:9092"
    assert advertised["INTERNAL"] == (KAFKA["hostname"], bound["INTERNAL"][1])
    assert BROKER["KAFKA_INTER_BROKER_LISTENER_NAME"] == "INTERNAL"
    protocols = BROKER["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
    assert {pair.partition(":")[0] for pair in protocols} == bound.keys()
    assert len({port for _, port in bound.values()}) == len(bound)


def test_log_and_state_survive_their_containers() -> None:
    assert KAFKA["volumes"] == [f"kafka-data:{BROKER['KAFKA_LOG_DIRS']}"]
    assert BROKER["KAFKA_UNCLEAN_LEADER_ELECTION_ENABLE"] == "false"
    command = REDIS["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    kept = {"--appendonly": "yes", "--appendfsync": "everysec", "--maxmemory-policy": "noeviction"}
    assert kept.items() <= options.items()
    assert REDIS["volumes"] == ["redis-data:/data"]


@pytest.mark.parametrize("name", PARTS)
def test_parts_reach_the_servers_with_settings_of_the_code(name: str) -> None:
    part = PARTS[name]
    servers = ("kafka", "redis")
    assert part["depends_on"] == {one: {"condition": "service_healthy"} for one in servers}
    assert all("test" in SERVICES[server]["healthcheck"] for server in servers)
    environment = part["environment"]
    given = {key: "" if "$" in value else value for key, value in environment.items()}
    assert given.keys() <= {f"TURNSTILE_{setting.name.upper()}" for setting in fields(Config)}
    config = Config.load(environment=given)
    listener = "HOST" if part.get("network_mode") == "host" else "INTERNAL"
    host, port = listeners("KAFKA_ADVERTISED_LISTENERS")[listener]
    assert config.kafka == f"{host}:{port}"
    if name == "worker":
        assert config.redis == "redis://redis:6379/0"
        assert (config.partitions, config.replication) == (4, 1)


def test_services_have_no_privileges_and_write_to_volumes_only() -> None:
    for service in (REDIS, *PARTS.values()):
        assert service["read_only"] is True
    for part in PARTS.values():
        assert part["tmpfs"] == ["/tmp"]
    assert PARTS["portal"]["volumes"] == ["portal-state:/state"]
    assert all(mount.endswith(":ro") for mount in PARTS["answerer"]["volumes"])
    for service in (KAFKA, *PARTS.values()):
        assert service["cap_drop"] == ["ALL"]
    for service in SERVICES.values():
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_settings_named_in_the_documentation_exist() -> None:
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS if path.name != "CHANGELOG.md"]
    named = set(re.findall(r"\bTURNSTILE_[A-Z_]*[A-Z]", " ".join(texts)))
    assert len(named) > 20
    assert {name.removesuffix("_FILE") for name in named} <= environment_names()
