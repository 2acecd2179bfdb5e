"""The settings of clients, workers and commands, from a file, the environment and options."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta

from accounting.exact.invalid_input import quoted, shortened
from streams.failures import Exit, Failure
from streams.redis_address import UnusableAddress, is_encrypted, read_address
from streams.toml import UnusableToml, read_toml

PREFIX = "turnstile."

_WORD = re.compile(r"\S+")
_IN_QUERY = re.compile(r"(?<=password=)[^\s&#]+", re.IGNORECASE)

_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_KEY_BYTES = 16, 64  # of a secret in a ring
_PASSWORD_LENGTH = 12  # of the dashboard, at least
_LONGEST_TIMEOUT = 1_000_000  # seconds; its milliseconds fit into 32 bits

SECURITIES = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER")
_TOKENS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
LOG_FORMATS = ("text", "json")
TRACES = ("", "otel")
OUTPUTS = ("json", "msgpack")
_FILE = "_file"  # after the name of a secret: the name of a file that holds it


def _setting(
    default: Any,
    help_: str,
    *,
    metavar: str = "",
    choices: tuple[str, ...] = (),
    secret: bool = False,
    file: bool = False,
    path: bool = False,
) -> Any:
    """Declare a setting.

    Args:
        default: its default value.
        help_: what it is, for ``--help`` and the documentation.
        metavar: the placeholder of its value in ``--help``.
        choices: the values that it can have; empty for no list.
        secret: whether its value is never shown. A secret can always be in a file of its own.
        file: whether its value can be in a file of its own (``<name>_file``).
        path: whether it is the name of a file. A relative name in a settings file counts from
            the folder of that file.
    """
    given = {"help": help_, "metavar": metavar, "choices": choices}
    return field(
        default=default, metadata={**given, "secret": secret, "file": file or secret, "path": path}
    )


class ConfigurationError(Failure, ValueError):
    """A setting is missing or has a value that cannot be used."""

    exit_code = Exit.USAGE


class Unavailable(Failure):
    """Kafka, Redis or a worker does not answer, or has no value yet."""


def lacking(what: str, extra: str, error: ImportError) -> ConfigurationError:
    """Return the error for a package that is not installed; ``extra`` contains it."""
    return ConfigurationError(
        f"{what} needs a package that is not installed ({error}): install dp-turnstile with its "
        f"extra `{extra}`"
    )


def is_address(text: str) -> bool:
    """Return whether a text is host:port."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and 0 < int(found[1]) < 2**16


def redact(text: object) -> str:
    """Return the text with ``***`` for the user and the password of every URL in it.

    Every setting and every error passes through this before it is printed or logged. It hides too
    much rather than too little, in a time that grows with the length of the text.
    """
    return _IN_QUERY.sub("***", _WORD.sub(lambda found: _without_login(found[0]), str(text)))


def _without_login(word: str) -> str:
    """Return a word with ``***`` for a login before its last @.

    A password may contain an unquoted @ or slash, so the last @ counts.
    """
    last = word.rfind("@")
    colon, scheme = word.find(":"), word.find("://")
    if 0 < colon < last - 1 and colon != scheme:
        return f"***@{word[last + 1 :]}"
    if 0 <= scheme <= last - 3:
        return f"{word[: scheme + 3]}***@{word[last + 1 :]}"
    return word


def failure_of(error: BaseException) -> str:
    """Return the type of an error and the lines that raised it, for a log.

    The text of an unexpected error may quote a token or the id of a user. Lines of code cannot.
    """
    lines = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return f"{type(error).__name__}\n{lines}"


Check: TypeAlias = tuple[object, str]
"""A verdict, which is true if settings are wrong, and the message for that case."""


@dataclass(frozen=True)
class Config:
    """Settings of a client or a worker.

    Each can come from a TOML file (a table ``[turnstile]`` or the top level) or from an
    environment variable ``TURNSTILE_<NAME>``; a variable wins over the file. Passwords, keys and
    key rings can be in files of their own, named by ``<name>_file`` or ``TURNSTILE_<NAME>_FILE``.
    """

    kafka: str = _setting(
        "localhost:9092", "the bootstrap brokers, separated by commas", metavar="HOST:PORT"
    )
    redis: str = _setting(
        "redis://localhost:6379/0",
        "the URL of Redis; rediss:// is encrypted, and Clusters and Sentinels have URLs, too",
        metavar="URL",
    )
    prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,200}\Z")] = _setting(
        PREFIX, "the prefix of topics and Redis keys"
    )
    partitions: Annotated[int, Meta(ge=1, le=100_000)] = _setting(
        4,
        "the number of partitions of new topics; a log keeps its number",
        metavar="P",
    )
    replication: Annotated[int, Meta(ge=1, le=1_000)] = _setting(
        1, "the number of copies of each partition of new topics"
    )
    budgets: str = _setting(
        "",
        "a file of `Turnstile.open`, instead of a service",
        metavar="FILE",
        path=True,
    )
    timeout: Annotated[float, Meta(gt=0, le=_LONGEST_TIMEOUT)] = _setting(
        30.0, "the seconds to wait for an answer, for example for all decisions", metavar="S"
    )
    snapshot_seconds: Annotated[float, Meta(ge=0, le=_LONGEST_TIMEOUT)] = _setting(
        600.0, "the seconds from one snapshot of a partition to the next; 0 for no snapshots"
    )
    health: str = _setting(
        "",
        "the address on which a worker or an answerer answers /livez, /readyz, /healthz, /metrics",
        metavar="HOST:PORT",
    )
    log_format: str = _setting(
        LOG_FORMATS[0],
        "the format of the log of a worker, an answerer, a gateway or a page",
        choices=LOG_FORMATS,
    )
    outputs: str = _setting(
        OUTPUTS[0], "workers: the form of what they publish; readers read both", choices=OUTPUTS
    )
    traces: str = _setting(
        "", "otel sends spans with the OpenTelemetry API, if it is installed", choices=TRACES
    )

    kafka_security: str = _setting(
        "PLAINTEXT", "the protocol of the connection to the brokers", choices=SECURITIES
    )
    kafka_mechanism: str = _setting(
        MECHANISMS[0],
        "the mechanism of the login; PLAIN and OAUTHBEARER need SASL_SSL",
        choices=MECHANISMS,
    )
    kafka_username: str = _setting("", "the user of the login")
    kafka_password: str = _setting("", "the password of the login", secret=True)
    kafka_token_provider: str = _setting(
        "",
        "for OAUTHBEARER: a function without arguments that returns a token, called at each login",
        metavar="MODULE:FUNCTION",
    )
    kafka_ca: str = _setting(
        "", "the authority of the brokers' certificates; empty for the system's", path=True
    )
    kafka_certificate: str = _setting(
        "", "the client's certificate, if the brokers ask for one", path=True
    )
    kafka_key: str = _setting(
        "", "the key of this certificate, if it is in another file", path=True
    )
    kafka_key_password: str = _setting("", "the password of this key", secret=True)
    redis_username: str = _setting("", "the user of Redis, instead of one in the URL")
    redis_password: str = _setting("", "the password, instead of one in the URL", secret=True)
    redis_sentinel_username: str = _setting(
        "", "the user of the Sentinels; it needs the right `+sentinel|masters`"
    )
    redis_sentinel_password: str = _setting("", "the password of this user", secret=True)
    redis_ca: str = _setting(
        "", "the authority of the certificates of all Redis nodes and Sentinels", path=True
    )
    redis_certificate: str = _setting(
        "", "the client's certificate, if Redis asks for one", path=True
    )
    redis_key: str = _setting(
        "", "the key of this certificate, if it is in another file", path=True
    )
    signing_key: str = _setting(
        "",
        "workers: the key that signs their records; answerers: another one, which signs answers",
        secret=True,
    )
    trusted_keys: str = _setting(
        "",
        "readers of workers' records: the public keys whose signatures count; empty: all records "
        "count",
        file=True,
    )
    answer_keys: str = _setting(
        "", "answerers and readers of `answers`: the public keys whose signatures count", file=True
    )
    request_key: str = _setting("", "clients: the key that signs their requests", secret=True)
    gateway_keys: str = _setting(
        "", "`turnstile gateway`: the public keys of the callers that it serves", file=True
    )
    curator_keys: str = _setting(
        "", "`turnstile gateway`: the public keys that may read users' balances", file=True
    )
    pseudonym_key: str = _setting(
        "", "clients: the key of pseudonyms, which replace user ids in requests", secret=True
    )
    erasure_keys: str = _setting(
        "",
        "workers and replays of the log: the keys by which erased users are recognized, the newest "
        "one first; it is used for new erasures",
        secret=True,
    )
    dashboard_password: str = _setting(
        "", "`turnstile dashboard`: the operators' password, 12 characters or more", secret=True
    )
    portal_key: str = _setting(
        "",
        "`turnstile portal` and `portal link`: the keys of links and sessions; the first one signs",
        secret=True,
    )
    portal_state: str = _setting(
        "",
        "`turnstile portal` and `portal revoke`: the file that stores opened and revoked links",
        path=True,
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = _checked(setting, getattr(self, setting.name))
            object.__setattr__(self, setting.name, value)
        for wrong, problem in (
            *self._addresses(),
            *self._logins(),
            *self._certificates(),
            *self._secrets(),
        ):
            if wrong:
                raise ConfigurationError(problem)

    def __repr__(self) -> str:
        """Return the settings that have no default value, without secrets."""
        shown = [s for s in fields(self) if s.name in _ALWAYS or getattr(self, s.name) != s.default]
        values = (f"{s.name}={_shown(s, getattr(self, s.name))}" for s in shown)
        return f"Config({', '.join(values)})"

    def _addresses(self) -> Iterator[Check]:
        for address in self.kafka.split(","):
            yield (
                is_address(f"{address}:9092"),  # clients would assume port 9092 and wait
                f"kafka is {quoted(self.kafka)}, and {address} has no port: write {address}:9092, "
                "or the port that `turnstile up` printed",
            )
            yield (
                not is_address(address),
                f"kafka is {shortened(redact(repr(self.kafka)))}; give host:port of a broker, or "
                "of several with commas between them",
            )
        try:
            read_address(self.redis)  # its client would reject it late, or misread it
        except UnusableAddress as error:
            yield True, f"redis is not a usable URL ({error}); give one like {Config.redis}"
        yield (
            bool(self.health) and not is_address(self.health),
            f"health is {quoted(self.health)}; give host:port to listen on, like 127.0.0.1:9464",
        )

    def _logins(self) -> Iterator[Check]:
        """Yield the checks that the connection to Kafka is as secure as the settings say."""
        security, mechanism = self.kafka_security, self.kafka_mechanism
        has_login = bool(self.kafka_username), bool(self.kafka_password)
        logs_in = security.startswith("SASL_")
        by_token = logs_in and mechanism == "OAUTHBEARER"
        by_password = logs_in and not by_token
        yield (
            by_token is not bool(self.kafka_token_provider),
            "kafka_token_provider is for kafka_mechanism OAUTHBEARER with kafka_security SASL_SSL, "
            "which needs it: set all three, or remove kafka_token_provider",
        )
        yield (
            by_token and security != "SASL_SSL",
            "kafka_mechanism is OAUTHBEARER, which would send the token unencrypted: set "
            "kafka_security to SASL_SSL",
        )
        yield (
            by_token and any(has_login),
            "kafka_mechanism is OAUTHBEARER, which has no kafka_username and no kafka_password: "
            "remove them",
        )
        yield (
            by_token and not _TOKENS.fullmatch(self.kafka_token_provider),
            f"kafka_token_provider is {quoted(self.kafka_token_provider)}; give a function as "
            "module:function, such as company.kafka:token",
        )
        yield (
            by_password and not all(has_login),
            f"kafka_security is {security}, which needs kafka_username and kafka_password (or "
            "kafka_password_file)",
        )
        yield (
            by_password and mechanism == "PLAIN" and security == "SASL_PLAINTEXT",
            "kafka_mechanism is PLAIN, which would send kafka_password unencrypted: set "
            "kafka_security to SASL_SSL, or kafka_mechanism to SCRAM-SHA-512",
        )
        yield (
            not logs_in and any(has_login),
            f"kafka_username or kafka_password is set, and kafka_security is {security}, which has "
            "no login: set it to SASL_SSL, or remove them",
        )

    def _certificates(self) -> Iterator[Check]:
        for who, used, needed in (
            ("kafka", self.kafka_security.endswith("SSL"), "kafka_security to SSL or SASL_SSL"),
            ("redis", is_encrypted(self.redis), "redis to a URL that begins with rediss"),
        ):
            files = {name: getattr(self, name) for name in _PATHS if name.startswith(who)}
            for name, path in files.items():
                yield (
                    bool(path) and not used,
                    f"{name} is set, but the connection is not encrypted: set {needed}",
                )
                yield (
                    bool(path) and not Path(path).is_file(),
                    f"{name} is {path!r}, and this file does not exist",
                )
            key, certificate = f"{who}_key", f"{who}_certificate"
            yield (
                bool(files[key]) and not files[certificate],
                f"{key} is set without {certificate}: give both",
            )

    def _secrets(self) -> Iterator[Check]:
        """Yield the checks that no secret can be guessed, or is too long for the hash function."""
        least, most = _KEY_BYTES
        for name in ("erasure_keys", "portal_key"):
            for number, key in enumerate(secrets_of(getattr(self, name)), start=1):
                yield (
                    not least <= len(key.encode()) <= most,
                    f"{name}: key {number} has {len(key.encode())} bytes; it must have {least} to "
                    f"{most}, as `openssl rand -hex 32` makes them",
                )
        yield (
            0 < len(self.dashboard_password) < _PASSWORD_LENGTH,
            f"dashboard_password has {len(self.dashboard_password)} characters; it must have "
            f"{_PASSWORD_LENGTH} or more, as `openssl rand -hex 12` makes them",
        )

    def topic(self, name: str) -> str:
        """Return the full name of a topic."""
        return f"{self.prefix}{name}"

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> Config:
        """Return defaults, replaced by the file, the environment and the overrides, in this order.

        Overrides that are None do not count. An override of ``kafka`` replaces ``budgets``, too.

        Raises:
            ConfigurationError: unreadable file, unknown setting, or a value of the wrong kind.
        """
        environment = os.environ if environment is None else environment
        path = path or environment.get("TURNSTILE_CONFIG")
        settings: dict[str, Any] = _settled(_read(Path(path)), Path(path).parent) if path else {}
        variables = {
            name: environment[variable]
            for name in _known_names()
            if (variable := f"TURNSTILE_{name.upper()}") in environment
        }
        settings.update(_settled(variables, Path()))
        given = {name: value for name, value in overrides.items() if value is not None}
        if "kafka" in given and given.setdefault("budgets", ""):
            raise ConfigurationError("kafka and budgets are both given: give one")
        settings.update(given)
        if unknown := settings.keys() - _TYPES.keys():
            known = ", ".join(_known_names())
            raise ConfigurationError(f"unknown setting {quoted(min(unknown))}; known are {known}")
        return cls(**settings)


def release() -> str:
    """Return the version of the installed package."""
    try:
        return version("dp-turnstile")
    except PackageNotFoundError:
        return "unknown"


def environment_names() -> set[str]:
    """Return the names of all environment variables that are settings."""
    return {f"TURNSTILE_{name.upper()}" for name in (*_known_names(), "config")}


def _known_names() -> list[str]:
    return [*_TYPES, *(name + _FILE for name in _FILED)]


_TYPES = get_type_hints(Config, include_extras=True)
_ALWAYS = ("kafka", "redis", "prefix")
_FILED = [setting.name for setting in fields(Config) if setting.metadata["file"]]
_PATHS = [setting.name for setting in fields(Config) if setting.metadata["path"]]


def _settled(given: Mapping[str, Any], beside: Path) -> dict[str, Any]:
    """Return the settings of one source, with the contents of the files that it names."""
    settings = dict(given)
    for name in _FILED:
        file = settings.pop(name + _FILE, None)
        if file is None:
            continue
        if name in settings:
            raise ConfigurationError(f"{name} and {name}{_FILE} are both given: give one")
        settings[name] = _content(name + _FILE, beside / str(file))
    for name in _PATHS:
        if isinstance(settings.get(name), str) and settings[name]:
            settings[name] = str(beside / settings[name])
    return settings


def _content(name: str, path: Path) -> str:
    """Return the contents of a file without the line end that editors append."""
    try:
        content = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{name}: cannot read {path}: {error}") from None
    if not content.strip():
        raise ConfigurationError(f"{name}: {path} is empty")
    return content


def _checked(setting: Field[Any], value: Any) -> Any:
    """Return a value of the type of its setting, or ``ConfigurationError``; variables are text."""
    try:
        converted = msgspec.convert(value, _TYPES[setting.name], strict=False)
    except UnicodeEncodeError:
        raise ConfigurationError(f"{setting.name} is not valid text") from None
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{setting.name} is {_shown(setting, value)}: {error}") from None
    if isinstance(converted, str) and "\0" in converted:
        raise ConfigurationError(f"{setting.name} has a NUL character: remove it")
    choices = setting.metadata["choices"]
    if choices and converted not in choices:
        allowed = ", ".join(choice or "empty" for choice in choices)
        raise ConfigurationError(f"{setting.name} is {quoted(value)}; it must be one of {allowed}")
    return converted


def _shown(setting: Field[Any], value: Any) -> str:
    return "***" if setting.metadata["secret"] else shortened(redact(repr(value)))


def secrets_of(ring: str) -> list[str]:
    """Return the secrets of a key ring; the first one is used for new records."""
    return ring.replace(",", " ").split()


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = read_toml(path)
    except UnusableToml as error:
        raise ConfigurationError(str(error)) from error
    table = content.get("turnstile", content)
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: turnstile must be a table")
    return table
