"""An installation on this machine with TLS, a login for each role, and the rights of that role.

It sets up what an operator sets up elsewhere: an authority and certificates, a Kafka user and a
Redis user per role with the rights that ``turnstile acl`` prints, the topics, and keys with which
workers sign decisions and clients sign requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from streams.config import Config
from streams.kafka.access import ROLES, rules_of
from streams.kafka.answers import ensure_answer_topics
from streams.kafka.granting import grant, set_passwords
from streams.kafka.results import TopicsUnavailable
from streams.kafka.topics import ensure_topics
from streams.local.certificates import Authority
from streams.local.directory import DataDirectory
from streams.local.errors import LocalStackError
from streams.local.secrets import Secrets
from streams.local.secure_broker import ADMIN, ADMIN_FILE, SecureBroker
from streams.local.secure_redis import SecureRedis
from streams.local.stack import SECURE_FOLDER, LocalStack
from streams.store.rights import rights


class SecureStack(LocalStack):
    """A ``LocalStack`` that only clients with the settings of a role can use.

    ```
    with SecureStack(workers=1) as stack:
        Turnstile(config=stack.config_of("trainer"))
    ```
    """

    _is_secure = True
    replication = 1
    """The replication factor in the settings of all roles."""

    def __init__(self, **options: Any) -> None:
        """Describe the stack; ``start()`` or ``with`` starts it.

        Args:
            options: of ``LocalStack``, without ``kafka``, ``redis`` and ``known_ports``: the stack
                starts its own servers, and no default port leads to a server with logins.
        """
        if refused := [name for name in ("kafka", "redis", "known_ports") if options.get(name)]:
            raise LocalStackError(
                f"A secure stack starts its own broker and Redis: leave out {', '.join(refused)}."
            )
        super().__init__(**options)
        self._secrets: Secrets | None = None

    @property
    def roles(self) -> Mapping[str, Path]:
        """The settings file of each role, and of the admin."""
        return {role: self.secrets.settings_of(role) for role in (*ROLES, "admin")}

    @property
    def secrets(self) -> Secrets:
        """The passwords and keys."""
        if self._secrets is None:
            raise LocalStackError("The stack is not running: start it first.")
        return self._secrets

    def config_of(self, role: str) -> Config:
        """Return the settings of a role."""
        return self.secrets.config_of(role)

    def _start_servers(self, directory: DataDirectory) -> None:
        secrets = self._secrets = Secrets(directory.path / SECURE_FOLDER)
        users = {
            role: (secrets.passwords[role], rights(known.redis, self.prefix))
            for role, known in ROLES.items()
            if known.redis
        }
        self._redis = SecureRedis(directory.path, secrets.directory, users, hold=self._hold)
        self._start_server(self._redis)
        Authority(secrets.directory).issue(ADMIN, secrets.directory / ADMIN_FILE)
        self._broker = broker = self._new_broker(directory.path, secrets.directory)
        self._start_server(broker)
        secrets.write_settings(
            broker.address,
            broker.internal_address,
            self._redis.url,
            self.prefix,
            replication=self.replication,
        )
        self._set_up(secrets)
        self._worker_environment["TURNSTILE_CONFIG"] = str(secrets.settings_of("worker"))

    def _new_broker(self, directory: Path, secrets: Path) -> SecureBroker:
        return SecureBroker(directory, secrets, progress=self._say, hold=self._hold)

    def _set_up(self, secrets: Secrets) -> None:
        """Create users, rights and topics as the admin; existing ones stay."""
        self._say("Creating users, rights and topics")
        admin = replace(secrets.config_of("admin"), partitions=self.partitions)
        try:
            set_passwords(admin, secrets.passwords)
            grant(admin, {f"User:{role}": rules_of(role, self.prefix) for role in ROLES})
            ensure_topics(admin)
            ensure_answer_topics(admin)
        except TopicsUnavailable as error:
            raise LocalStackError(f"The users and rights could not be created: {error}") from error
