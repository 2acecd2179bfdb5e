"""The secrets of a local installation: passwords, keys, and a settings file for each role.

They are in one directory that only its owner can enter. The first start creates it, and it is kept
with the data. A settings file names the others by relative paths, so the folder can be copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from secrets import token_hex, token_urlsafe

from streams.config import Config
from streams.kafka.access import ROLES
from streams.local.directory import make_private, write_private
from streams.records.signatures import Signer, new_keys

_RINGS = {  # private key -> file of trusted public keys: of workers, of answerers
    "signing.key": "trusted.keys",
    "answer-signing.key": "answer.keys",
}
CLIENTS = ("trainer", "answerer")
"""The roles that sign their requests."""


class Secrets:
    """The passwords and keys in one directory.

    Attributes:
        directory: the directory.
        passwords: of each role, the same for Kafka and Redis.
        request_keys: the public key of each role that signs its requests, for access lists.
    """

    def __init__(self, directory: Path) -> None:
        """Load the secrets of a directory, and create those that are missing."""
        make_private(directory)
        self.directory = directory
        self.passwords = {role: self._kept(f"{role}.password", token_urlsafe) for role in ROLES}
        for private, ring in _RINGS.items():
            public = self._public(private)
            if not (directory / ring).exists():  # the operator may have added keys
                write_private(directory / ring, f"{public}\n".encode())
        self.request_keys = {role: self._public(f"{role}.key") for role in CLIENTS}
        for role, public in self.request_keys.items():
            write_private(directory / f"{role}.public", f"{public}\n".encode())
        self._kept("erasure.keys", lambda: token_hex(32))

    def settings_of(self, role: str) -> Path:
        """Return the settings file of a role, or of the admin."""
        return self.directory / f"{role}.toml"

    def write_settings(
        self, kafka: str, internal: str, redis: str, prefix: str, replication: int = 1
    ) -> None:
        """Write the settings file of every role, with the current addresses."""
        common = {
            "prefix": prefix,
            "replication": str(replication),
            "kafka_ca": "ca.pem",
            "trusted_keys_file": "trusted.keys",
            "answer_keys_file": "answer.keys",
        }
        for role, known in ROLES.items():
            settings = {
                **common,
                "kafka": kafka,
                "kafka_security": "SASL_SSL",
                "kafka_username": role,
                "kafka_password_file": f"{role}.password",
            }
            if known.redis:
                settings |= {
                    "redis": redis,
                    "redis_username": role,
                    "redis_password_file": f"{role}.password",
                }
            if known.decides:
                settings["signing_key_file"] = "signing.key"
            if known.consumes:
                settings["signing_key_file"] = "answer-signing.key"
            if known.redis in ("audit", "decide"):  # these roles replay the log
                settings["erasure_keys_file"] = "erasure.keys"
            if role in CLIENTS:
                settings["request_key_file"] = f"{role}.key"
            self._write(role, settings)
        admin = {"kafka": internal, "kafka_security": "SSL", "kafka_certificate": "admin.pem"}
        self._write("admin", {**common, **admin})

    def config_of(self, role: str) -> Config:
        """Return the settings of a role, regardless of environment variables."""
        return Config.load(self.settings_of(role), {})

    def _public(self, private: str) -> str:
        """Return the public key of a private key, which is created if it is missing."""
        return Signer(self._kept(private, lambda: new_keys()[0])).public

    def _kept(self, name: str, make: Callable[[], str]) -> str:
        path = self.directory / name
        if not path.exists():
            write_private(path, f"{make()}\n".encode())
        return path.read_text(encoding="utf-8").strip()

    def _write(self, role: str, settings: Mapping[str, str]) -> None:
        lines = [f'{name} = "{value}"\n' for name, value in settings.items()]
        write_private(self.settings_of(role), "".join(lines).encode())
