"""A Redis with one user per role, each with a password and only the rights that the role needs.

The connections are not encrypted: the server listens on the loopback address only, and the Redis of
the extra ``local`` has no TLS. The file of users contains digests of the passwords. No password is
an argument of a process, which other users of the machine could read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from streams.local.directory import write_private
from streams.local.redis_server import RedisServer

LAUNCHER = "launcher"
"""The user that checks whether the server is ready."""


class SecureRedis(RedisServer):
    """A Redis with the given users and no others.

    Attributes:
        users_file: the users with their rights and the digests of their passwords.
    """

    def __init__(
        self,
        directory: Path | str,
        secrets: Path,
        users: Mapping[str, tuple[str, Sequence[str]]],
        **options: Any,
    ) -> None:
        """Describe the server; ``start()`` starts it.

        Args:
            directory: as in ``RedisServer``.
            secrets: a directory that only its owner can read, for the file of users.
            users: name -> (password, the rights as arguments of ACL SETUSER).
            options: of ``RedisServer``.
        """
        self.users_file = secrets / "redis-users.acl"
        super().__init__(directory, settings={"aclfile": str(self.users_file)}, **options)
        password = token_urlsafe()
        self._login = f"AUTH {LAUNCHER} {password}\r\n".encode()
        known = {**users, LAUNCHER: (password, ("-@all", "+ping", "+info"))}
        write_private(self.users_file, _file_of_users(known))


def _file_of_users(users: Mapping[str, tuple[str, Sequence[str]]]) -> bytes:
    lines = ["user default off"]
    for name, (password, allowed) in users.items():
        digest = hashlib.sha256(password.encode()).hexdigest()
        lines.append(f"user {name} on #{digest} {' '.join(allowed)}")
    return "\n".join([*lines, ""]).encode()
