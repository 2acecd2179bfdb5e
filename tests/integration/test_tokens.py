"""Workers and clients log in with tokens (OAUTHBEARER), by Faust, aiokafka and kafka-python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from streams import Turnstile
from streams.config import Config
from streams.kafka.kafka_clients import new_admin
from streams.kafka.security import ConnectionFailure, NotAdmitted
from streams.local import Child, LocalStack
from streams.local.secure import SecureBroker
from tests.integration import tokens
from tests.integration.command import turnstile
from tests.integration.service import eventually
from tests.waiting import HANGS_AFTER

PREFIX = "tokens."


class TokenBroker(SecureBroker):
    """A broker whose clients log in with unsigned tokens."""

    def _listeners(self, ports: tuple[int, ...]) -> Mapping[str, str]:
        settings = dict(super()._listeners(ports))
        mechanism = "listener.name.client.oauthbearer.sasl.jaas.config"
        login = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
        settings |= {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            mechanism: login,
            "super.users": f"{settings['super.users']};User:{tokens.USER}",
        }
        del settings["listener.name.client.scram-sha-512.sasl.jaas.config"]
        return settings


@pytest.fixture(scope="module")
def environment(
    servers: LocalStack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Start the broker; return the settings of its clients."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "secrets").mkdir(mode=0o700)
    with TokenBroker(folder, folder / "secrets") as broker, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKEN_SECONDS", "3600")
        yield {
            "TURNSTILE_KAFKA": broker.address,
            "TURNSTILE_REDIS": servers.redis,
            "TURNSTILE_PREFIX": PREFIX,
            "TURNSTILE_PARTITIONS": "2",
            "TURNSTILE_KAFKA_SECURITY": "SASL_SSL",
            "TURNSTILE_KAFKA_MECHANISM": "OAUTHBEARER",
            "TURNSTILE_KAFKA_TOKEN_PROVIDER": f"{tokens.__name__}:token",
            "TURNSTILE_KAFKA_CA": str(folder / "secrets" / "ca.pem"),
        }


@pytest.fixture
def config(environment: dict[str, str]) -> Config:
    return Config.load(environment=environment, timeout=HANGS_AFTER)


def test_a_worker_decides_for_a_client_with_a_token(
    config: Config, environment: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "streams.cli", "worker"]
    child = Child(
        "A worker", command, log=tmp_path / "log", environment={**os.environ, **environment}
    )
    try:
        eventually(lambda: turnstile("status", environment=environment).code == 0)
        with Turnstile(config=config) as client:
            client.create_dataset("d", measure="zcdp", budget=0.5)
            run = client.run("d", "r")
            assert run.charge([1, 2], [1.0, 1.0], noise_stddev=1.0).admitted.all()
            assert run.charge([1, 2], [1.0, 1.0], noise_stddev=1.0).halted.all()
    finally:
        child.kill()


@pytest.mark.parametrize(
    ("provider", "seconds"),
    [("token", "-60"), ("no_token", "3600")],
    ids=["expired", "no token"],
)
def test_a_client_without_a_valid_token_learns_why(
    config: Config, monkeypatch: pytest.MonkeyPatch, provider: str, seconds: str
) -> None:
    monkeypatch.setenv("TOKEN_SECONDS", seconds)
    refused = replace(config, kafka_token_provider=f"{tokens.__name__}:{provider}")
    with pytest.raises(NotAdmitted) as caught:
        new_admin(refused)
    assert caught.value.reason is ConnectionFailure.TOKEN
    assert "secret" not in str(caught.value)
