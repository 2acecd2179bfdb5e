"""The Redis rights of each role: commands, and the keys of one prefix.

Everything else is forbidden, above all deleting all keys or changing the server (FLUSHALL, CONFIG
SET), listing keys (KEYS, SCAN), and every key of another prefix, in scripts as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streams.config import ConfigurationError

_CONNECTING = ("client|setname", "cluster|info", "cluster|slots", "ping", "role", "select")
_LOOKING = ("exec", "hget", "hgetall", "info", "multi", "time")
_DECIDING = ("eval", "evalsha", "hmget", "hset", "lrange")
_READ_IN_SCRIPTS = ("exists", "hlen", "llen", "type")
_WRITTEN_IN_SCRIPTS = ("del", "hdel", "hincrby", "ltrim", "rename", "rpush")

_COMMANDS: Mapping[str, Sequence[str]] = {
    "look": (*_CONNECTING, *_LOOKING),
    "audit": (*_CONNECTING, *_LOOKING, "lrange"),
    "decide": (
        *(*_CONNECTING, *_LOOKING, *_DECIDING),
        *(*_READ_IN_SCRIPTS, *_WRITTEN_IN_SCRIPTS),
    ),
    "rewrite": ("bgrewriteaof", "info", "ping"),
}
_SHOWN = ("meta", "alive", "suspended")
"""The keys of a partition (``layout``) that have no data of single users."""


def rights(use: str, prefix: str) -> Sequence[str]:
    """Return the words that follow a user's name and password in ACL SETUSER.

    Args:
        use: "decide" for workers; "audit" for reading everything; "look" for `turnstile status`,
            which reads no state of users; "rewrite" for rewriting the append-only file.
        prefix: the prefix of the service.

    Raises:
        ConfigurationError: the prefix is empty, and every key begins with an empty prefix.
    """
    if not prefix:
        raise ConfigurationError(
            "the prefix is empty, so the user would have access to every key of this Redis: give "
            "the service a prefix"
        )
    allowed = (f"+{command}" for command in sorted(_COMMANDS[use]))
    keys = {
        "look": [f"{prefix}{{norms-*}}:{name}" for name in _SHOWN],
        "rewrite": [],
    }.get(use, [f"{prefix}*"])
    return ("resetkeys", "resetchannels", *(f"~{key}" for key in keys), "-@all", *allowed)
