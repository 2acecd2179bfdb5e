"""The address of a Redis, of a Redis Cluster, or of the Sentinels that know where Redis is.

    redis://[user:password@]host[:port][/database]        one Redis; unix:///path for its socket
    redis+cluster://[user:password@]host[:port],host...   some nodes of a Cluster, which name all
    redis+sentinel://[user:password@]host[:port],host.../service[/database]

``rediss`` instead of ``redis`` encrypts all connections. User and password are those of Redis.
Other Python clients read the same forms.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qsl, unquote, urlsplit

_OPTIONS = re.compile(r"db|username|password|client_name|ssl_[a-z_]+")
_SEVERAL = re.compile(
    r"(?P<scheme>rediss?)\+(?P<kind>cluster|sentinel)://(?:(?P<login>[^@/?#\[\]]*)@)?"
    r"(?P<nodes>[^@/?#]*)(?P<path>/[^@?#]*)?(?:\?(?P<query>[^@#]*))?"
)
_NODE = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_EXAMPLES = {
    "cluster": "redis+cluster://host:6379,host:6379",
    "sentinel": "redis+sentinel://host:26379,host:26379/service",
}
_PORTS = {"cluster": 6379, "sentinel": 26379}


class UnusableAddress(ValueError):
    """An address cannot be used. The message quotes nothing of it: any part may be the password."""


class AddressKind(StrEnum):
    """The kind of server at an address."""

    ONE = "one"
    CLUSTER = "cluster"
    SENTINEL = "sentinel"


@dataclass(frozen=True)
class RedisAddress:
    """A parsed address."""

    kind: AddressKind
    encrypted: bool
    nodes: Sequence[tuple[str, int]]  # hosts and ports of the Cluster or the Sentinels, else empty
    service: str  # the name that the Sentinels use
    database: str
    login: str = field(repr=False)  # user:password, as written
    query: str = field(repr=False)

    def url_of(self, host: str, port: int) -> str:
        """Return the address of one of the servers, with the login and options of all of them."""
        scheme = "rediss" if self.encrypted else "redis"
        name = f"[{host}]" if ":" in host else host
        login = f"{self.login}@" if self.login else ""
        query = f"?{self.query}" if self.query else ""
        return f"{scheme}://{login}{name}:{port}/{self.database}{query}"


def read_address(url: str) -> RedisAddress:
    """Parse an address; ``UnusableAddress`` if the client of Redis would reject or misread it."""
    if re.search(r"[\s\x00-\x1f]", url):
        raise UnusableAddress("it has a space: write it as %20")
    if re.match(r"rediss?\+", url):
        return _several(url)
    return _one(url)


def is_encrypted(url: str) -> bool:
    """Return whether the connection to this address uses TLS."""
    return url.startswith(("rediss:", "rediss+"))


def _one(url: str) -> RedisAddress:
    try:
        parts = urlsplit(url)
        port, database = parts.port, unquote(parts.path).strip("/")
    except ValueError:
        raise UnusableAddress("its host, port or options are unreadable") from None
    options = _options(parts.query)
    if parts.scheme == "unix":
        if not database:
            raise UnusableAddress("it names no socket: write it as unix:///path")
    elif parts.scheme not in ("redis", "rediss"):
        raise UnusableAddress(
            "it does not begin with redis, rediss or unix, or with redis+cluster or redis+sentinel"
        )
    elif not parts.hostname or port == 0:
        raise UnusableAddress("it names no host or port")
    else:
        _check_database(options.get("db", database))
    return RedisAddress(AddressKind.ONE, is_encrypted(url), (), "", database, "", parts.query)


def _several(url: str) -> RedisAddress:
    found = _SEVERAL.fullmatch(url)
    if not found:
        raise UnusableAddress("its host, port or options are unreadable")
    kind, query = AddressKind(found["kind"]), found["query"] or ""
    options = _options(query)
    nodes = tuple(_node(node, kind) for node in found["nodes"].split(","))
    first, _, second = unquote(found["path"] or "").strip("/").partition("/")
    service, database = (first, second) if kind is AddressKind.SENTINEL else ("", first)
    if kind is AddressKind.SENTINEL and not re.fullmatch(r"[A-Za-z0-9._-]+", service):
        raise UnusableAddress(f"it names no service: write it as in {_EXAMPLES[kind]}")
    _check_database(options.get("db", database))
    if kind is AddressKind.CLUSTER and (second or int(options.get("db", database) or 0)):
        raise UnusableAddress("a Redis Cluster has only database 0")
    encrypted = is_encrypted(url)
    return RedisAddress(kind, encrypted, nodes, service, database, found["login"] or "", query)


def _node(text: str, kind: AddressKind) -> tuple[str, int]:
    found = _NODE.fullmatch(text)
    port = int((found and found["port"]) or _PORTS[kind])
    if not found or not 0 < port < 2**16:
        raise UnusableAddress(f"it names no host or port: write them as in {_EXAMPLES[kind]}")
    return found["host"].strip("[]"), port


def _options(query: str) -> dict[str, str]:
    try:
        options = dict(parse_qsl(query, strict_parsing=bool(query)))
    except ValueError:
        raise UnusableAddress("its host, port or options are unreadable") from None
    if not all(map(_OPTIONS.fullmatch, options)):
        raise UnusableAddress("it has an unknown option; db, username and password are known")
    return options


def _check_database(number: str) -> None:
    if not re.fullmatch(r"[0-9]{0,9}", number):
        raise UnusableAddress("its database is not a number")
