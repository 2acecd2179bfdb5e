"""Where Kafka and Redis are, and how the topics are named: one place for settings."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

PREFIX = "turnstile."


# Up to the last @ before a space: a password may hold an @ or a slash that nobody quoted.
_IN_ADDRESS = re.compile(r"(?<=://)\S*@")
_IN_QUERY = re.compile(r"(?<=password=)[^\s&#]+", re.IGNORECASE)


class ConfigurationError(ValueError):
    """A setting is missing or has a value that cannot be used."""


def redact(text: object) -> str:
    """The text, with ``***`` for the user and the password of every URL in it.

    For whatever people or logs get to see of a setting or of an error. It hides too much rather
    than too little.
    """
    return _IN_QUERY.sub("***", _IN_ADDRESS.sub("***@", str(text)))


@dataclass(frozen=True)
class Config:
    """Settings of a client or a worker.

    Each can come from a TOML file (a table ``[turnstile]`` or the top level) or from an
    environment variable ``TURNSTILE_<NAME>``; a variable wins over the file.
    """

    kafka: str = "localhost:9092"  # bootstrap servers, comma separated
    redis: str = "redis://localhost:6379/0"
    prefix: str = PREFIX  # of topics and Redis keys
    partitions: int = 4  # of topics that do not exist yet; never changed afterwards
    replication: int = 1  # of topics that do not exist yet
    timeout: float = 30.0  # seconds until a charge without all its decisions raises

    def __post_init__(self) -> None:
        if not self.kafka:
            raise ConfigurationError("kafka is empty; give host:port of a broker")
        if self.partitions < 1:
            raise ConfigurationError(f"partitions is {self.partitions}; it must be at least 1")
        if self.replication < 1:
            raise ConfigurationError(f"replication is {self.replication}; it must be at least 1")
        if not 0 < self.timeout < float("inf"):
            raise ConfigurationError(f"timeout is {self.timeout}; it must be seconds above 0")

    def topic(self, name: str) -> str:
        """The full name of one of the topics norms, halts, odometer and rejects."""
        return f"{self.prefix}{name}"

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> Config:
        """Defaults, then the file, then the environment, then the overrides that are not None.

        Raises:
            ConfigurationError: unreadable file, unknown setting, or a value of the wrong kind.
        """
        environment = os.environ if environment is None else environment
        path = path or environment.get("TURNSTILE_CONFIG")
        settings: dict[str, Any] = dict(_read(Path(path))) if path else {}
        for setting in fields(cls):
            variable = environment.get(f"TURNSTILE_{setting.name.upper()}")
            if variable is not None:
                settings[setting.name] = variable
        settings.update({name: value for name, value in overrides.items() if value is not None})
        return cls(**{name: _convert(name, value) for name, value in settings.items()})


_KINDS = {"int": int, "float": float, "str": str}


def _convert(name: str, value: Any) -> Any:
    kinds = {setting.name: _KINDS[str(setting.type)] for setting in fields(Config)}
    if name not in kinds:
        raise ConfigurationError(f"unknown setting {name!r}; known are {', '.join(kinds)}")
    try:
        return kinds[name](value)
    except (TypeError, ValueError) as error:
        kind = kinds[name].__name__
        raise ConfigurationError(f"{name} is {value!r}; it must be of type {kind}") from error


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    table = content.get("turnstile", content)
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: turnstile must be a table")
    return table
