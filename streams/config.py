"""Where Kafka and Redis are, and how the topics are named: one place for settings."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

PREFIX = "turnstile."


# Up to the last @ before a space: a password may hold an @ or a slash that nobody quoted.
_IN_ADDRESS = re.compile(r"(?<=://)\S*@|(?<!\S)[^\s:]+:(?!//)\S+@")
_IN_QUERY = re.compile(r"(?<=password=)[^\s&#]+", re.IGNORECASE)

_BROKER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_PREFIX_OF_TOPICS = re.compile(r"[A-Za-z0-9._-]{0,200}")
_REDIS_OPTIONS = re.compile(r"db|username|password|client_name|ssl_[a-z_]+")
_MOST_PARTITIONS = 100_000
_MOST_REPLICAS = 1_000
_LONGEST_TIMEOUT = 1_000_000.0  # seconds; what counts milliseconds in 32 bits still holds it


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
    checkpoint_seconds: float = 600.0  # from one checkpoint of a partition to the next; 0: none

    def __post_init__(self) -> None:
        _check_brokers(self.kafka)
        _check_redis(self.redis)
        if not _PREFIX_OF_TOPICS.fullmatch(self.prefix):
            raise ConfigurationError(
                f"prefix is {self.prefix!r}; topics are named by at most 200 letters, digits, "
                "dots, dashes and underscores before their own name"
            )
        _check_range("partitions", self.partitions, 1, _MOST_PARTITIONS)
        _check_range("replication", self.replication, 1, _MOST_REPLICAS)
        if not 0 < self.timeout <= _LONGEST_TIMEOUT:
            raise ConfigurationError(
                f"timeout is {self.timeout}; it must be seconds above 0, "
                f"at most {_LONGEST_TIMEOUT:,.0f}"
            )

        if not 0 <= self.checkpoint_seconds <= _LONGEST_TIMEOUT:
            raise ConfigurationError(
                f"checkpoint_seconds is {self.checkpoint_seconds}; it must be seconds, at most "
                f"{_LONGEST_TIMEOUT:,.0f}, or 0 for no checkpoints"
            )

    def __repr__(self) -> str:
        values = ", ".join(f"{s.name}={redact(repr(getattr(self, s.name)))}" for s in fields(self))
        return f"Config({values})"

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
    kind = kinds[name]
    # 2.7 partitions are not 2, and true is not 1.
    exact = not isinstance(value, bool) and (kind is not int or isinstance(value, int | str))
    try:
        if exact:
            return kind(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ConfigurationError(f"{name} is {redact(repr(value))}; it must be of type {kind.__name__}")


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigurationError(f"{name} is {value}; it must be {least} to {most:,}")


def _check_brokers(addresses: str) -> None:
    for address in addresses.split(","):
        found = _BROKER.fullmatch(address)
        if not found or not 0 < int(found[1] or 1) < 2**16:
            raise ConfigurationError(
                f"kafka is {redact(repr(addresses))}; give host:port of a broker, "
                "or of several with commas between them"
            )


def _check_redis(url: str) -> None:
    """Refuse what Redis' client would refuse late, or read as something else."""
    # Not shown: where a URL cannot be read, nobody knows which part of it is the password.
    problem = f"redis is no URL that can be used ({{}}); give one like {Config.redis}"
    if re.search(r"[\s\x00-\x1f]", url):
        raise ConfigurationError(problem.format("it has a space: write it as %20"))
    try:
        parts = urlsplit(url)
        port, database = parts.port, unquote(parts.path).strip("/")
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:
        raise ConfigurationError(
            problem.format("its host, port or options are unreadable")
        ) from None
    if not all(map(_REDIS_OPTIONS.fullmatch, options)):
        raise ConfigurationError(problem.format("its options are not db, username or password"))
    if parts.scheme == "unix":
        if not database:
            raise ConfigurationError(problem.format("it names no socket"))
        return
    if parts.scheme not in ("redis", "rediss"):
        raise ConfigurationError(problem.format("it does not begin with redis, rediss or unix"))
    if not parts.hostname or port == 0:
        raise ConfigurationError(problem.format("it names no host or port"))
    if not re.fullmatch(r"[0-9]{0,9}", options.get("db", database)):
        raise ConfigurationError(problem.format("the number of its database is not a number"))


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
