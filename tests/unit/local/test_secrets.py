"""The secrets of an installation are made once, are of use to each role, and to nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from streams.config import Config
from streams.kafka.access import ROLES
from streams.kafka.authentic import ANSWERERS, record_signer_of, verifier_of
from streams.local import LocalFailure, LocalStackError
from streams.local.secure import Authority, Secrets, SecureStack
from streams.records.signatures import Signer


def written(directory: Path, kafka: str = "127.0.0.1:1") -> Secrets:
    secrets = Secrets(directory)
    Authority(directory).issue("turnstile-admin", directory / "admin.pem")
    secrets.write_settings(kafka, "127.0.0.1:2", "redis://127.0.0.1:3/0", "mine.")
    return secrets


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_second_start_finds_what_the_first_has_made(tmp_path: Path) -> None:
    folder = tmp_path / "secure"
    passwords, before = written(folder).passwords, contents(folder)
    assert len(set(passwords.values())) == len(ROLES)
    assert written(folder, "127.0.0.1:9").passwords == passwords
    changed = {name for name, content in contents(folder).items() if content != before[name]}
    assert changed == {"admin.pem", *(f"{role}.toml" for role in ROLES)}  # ports, certificates


def test_each_role_has_the_secrets_that_it_needs(tmp_path: Path) -> None:
    secrets = written(tmp_path / "secure")
    configs = {role: secrets.config_of(role) for role in (*ROLES, "admin")}
    for role, config in configs.items():
        assert config.prefix == "mine."
        assert verifier_of(config, b"log") is not None
        assert config.kafka_password == secrets.passwords.get(role, "")
        assert bool(config.signing_key) is (role in ("worker", "answerer"))
        looks = role in ROLES and ROLES[role].redis is not None
        assert (config.redis != Config.redis) is looks
        assert bool(config.erasure_keys) is (role in ("worker", "auditor"))
        assert bool(config.request_key) is (role in ("trainer", "answerer"))
        if config.request_key:
            shown = (secrets.directory / f"{role}.public").read_text().strip()
            assert Signer(config.request_key).public == shown == secrets.request_keys[role]
    assert configs["worker"].erasure_keys == configs["auditor"].erasure_keys
    assert record_signer_of(configs["worker"], b"log") is not None
    assert record_signer_of(configs["answerer"], b"log", ANSWERERS) is not None
    assert verifier_of(configs["auditor"], b"log", ANSWERERS) is not None
    assert configs["answerer"].signing_key != configs["worker"].signing_key


@pytest.mark.parametrize("name", ["trusted.keys", "answer.keys"])
def test_keys_added_to_a_trust_store_stay(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "secure"
    store = written(folder).directory / name
    store.write_text(store.read_text() + "# another\n")
    written(folder)
    assert store.read_text().endswith("# another\n")


@pytest.mark.parametrize(
    "options", [{"kafka": "127.0.0.1:1"}, {"redis": "redis://127.0.0.1:1"}, {"known_ports": True}]
)
def test_a_secure_stack_starts_its_own_servers_on_other_ports(options: dict[str, Any]) -> None:
    with pytest.raises(LocalStackError) as caught:
        SecureStack(**options)
    assert caught.value.reason is LocalFailure.INVALID_CALL
    assert all(option in str(caught.value) for option in options)


def test_a_certificate_is_for_this_machine_and_by_this_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("somebody", tmp_path / "one.pem")
    made = x509.load_pem_x509_certificate((tmp_path / "one.pem").read_bytes())
    made.verify_directly_issued_by(
        x509.load_pem_x509_certificate(authority.certificate.read_bytes())
    )
    hosts = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(host.value) for host in hosts} == {"127.0.0.1", "localhost"}
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
