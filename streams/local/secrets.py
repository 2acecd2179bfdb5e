"""The secrets of a local installation: passwords, keys, and a file of settings for each role.

All are in one directory that its owner alone can enter, made at the first start and kept with the
data. The settings name the other files beside them, so that a role is handed over as a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from secrets import token_urlsafe

from streams.config import Config
from streams.local.certificates import write_private
from streams.topics.access import ROLES
from streams.wire.signatures import Signer, new_keys

_OF_WORKERS, _OF_ANSWERERS = "signing.key", "answer-signing.key"
_RINGS = {"trusted_keys_file": "trusted.keys", "answer_keys_file": "answer.keys"}


class Secrets:
    """Who has which password, under ``directory``.

    Attributes:
        directory: where everything is.
        passwords: of each role, the same on Kafka and on Redis.
    """

    def __init__(self, directory: Path) -> None:
        """Those that the directory has; what is missing is made."""
        directory.mkdir(mode=0o700, exist_ok=True)
        directory.chmod(0o700)
        self.directory = directory
        self.passwords = {role: self._kept(f"{role}.password", token_urlsafe) for role in ROLES}
        for key, name in zip((_OF_WORKERS, _OF_ANSWERERS), _RINGS.values(), strict=True):
            private = self._kept(key, lambda: new_keys()[0])
            ring = directory / name
            if not ring.exists():  # keys may have been added
                write_private(ring, f"{Signer(private).public}\n".encode())

    def settings_of(self, role: str) -> Path:
        """The file of settings of a role, or of the admin."""
        return self.directory / f"{role}.toml"

    def write_settings(self, kafka: str, internal: str, redis: str, prefix: str) -> None:
        """Write the settings of every role, with the addresses that hold now."""
        common = {"prefix": prefix, "kafka_ca": "ca.pem", **_RINGS}
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
                if redis.startswith("rediss:"):
                    settings["redis_ca"] = "ca.pem"
            if known.decides:
                settings["signing_key_file"] = _OF_WORKERS
            if known.consumes:
                settings["signing_key_file"] = _OF_ANSWERERS
            self._write(role, settings)
        admin = {"kafka": internal, "kafka_security": "SSL", "kafka_certificate": "admin.pem"}
        self._write("admin", {**common, **admin})

    def config_of(self, role: str) -> Config:
        """The settings of a role, whatever the environment says."""
        return Config.load(self.settings_of(role), {})

    def _kept(self, name: str, make: Callable[[], str]) -> str:
        path = self.directory / name
        if not path.exists():
            write_private(path, f"{make()}\n".encode())
        return path.read_text(encoding="utf-8").strip()

    def _write(self, role: str, settings: Mapping[str, str]) -> None:
        lines = [f'{name} = "{value}"\n' for name, value in settings.items()]
        write_private(self.settings_of(role), "".join(lines).encode())
