"""An installation on this machine in which everybody has a password, and the rights of a role.

What it brings up is what an operator sets up elsewhere: TLS with an authority of its own, a user of
Kafka and of Redis for each role, the rights that ``turnstile acl`` prints, topics made beforehand,
workers that sign, and an operator that says whose requests count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from streams.config import Config
from streams.local.certificates import Authority
from streams.local.cluster import REPLICAS
from streams.local.directory import DataDirectory
from streams.local.errors import LocalStackError
from streams.local.secrets import PRINCIPALS, Secrets
from streams.local.secure_broker import ADMIN, ADMIN_FILE, SecureBroker, SecureCluster
from streams.local.secure_redis import SecureRedis
from streams.local.stack import SECURE_FOLDER, LocalStack
from streams.operations.errors import Unavailable
from streams.operations.status import topics_of
from streams.sdk.client import Turnstile
from streams.sdk.errors import TurnstileError
from streams.store.rights import rights
from streams.topics.access import ROLES, rules_of
from streams.topics.answers import ensure_answer_topics
from streams.topics.granting import grant, set_passwords
from streams.topics.seen import TopicsUnavailable
from streams.topics.topics import ensure_topics


class SecureStack(LocalStack):
    """As ``LocalStack``; without a role's file of settings nobody gets anywhere.

    ```
    with SecureStack(workers=1) as stack:
        Turnstile(config=stack.config_of("trainer"))
    ```
    """

    _is_secure = True

    def __init__(self, **options: Any) -> None:
        """Describe the stack; ``start()`` or ``with`` starts it.

        Args:
            options: of ``LocalStack``. A broker or a Redis that is there already cannot be given:
                its users and rights are its operator's. Nor can a Redis Cluster: its nodes take
                the word of whoever reaches the ports on which they talk to each other, which are
                not encrypted, and would hand clients with their passwords on to anybody.
        """
        if options.get("kafka") or options.get("redis"):
            raise LocalStackError("A secure stack starts its own broker and Redis: give neither.")
        if options.get("redis_nodes", 1) != 1:
            raise LocalStackError(
                f"A secure stack has one Redis, and {options['redis_nodes']} nodes are asked for, "
                "which would believe whoever reaches the ports on which they talk to each other: "
                "leave out one of the two."
            )
        super().__init__(**options)
        self._secrets: Secrets | None = None

    @property
    def roles(self) -> Mapping[str, Path]:
        """The file of settings of each role, and of the admin."""
        return {role: self.secrets.settings_of(role) for role in (*ROLES, "admin")}

    @property
    def secrets(self) -> Secrets:
        """Passwords and keys."""
        if self._secrets is None:
            raise LocalStackError("The stack is not running: start it first.")
        return self._secrets

    def config_of(self, role: str) -> Config:
        """The settings of a role."""
        return self.secrets.config_of(role)

    def settle(self) -> None:
        """Bind the operator and register those who sign, once for each log.

        The key is the admin's. Workers are told of it before they start, so that they stop if
        somebody else was faster.

        Raises:
            LocalStackError: not all partitions agreed.
        """
        admin = self.config_of("admin")
        try:
            log = topics_of(admin).topic.hex()
            if self.secrets.is_bound(log):
                return
            self._say("Binding the operator, and registering who signs")
            with Turnstile(config=admin) as operator:
                for name, creates in PRINCIPALS.items():
                    public = self.secrets.request_keys[name]
                    operator.add_principal(name, public, creates=creates)
        except (TurnstileError, Unavailable) as error:
            raise LocalStackError(
                f"The operator could not be bound: {error}. If another one was bound in this log "
                f"before, add its public key to {self.secrets.directory / 'operator.keys'}, and "
                f"its private key in the place of operator.key there"
            ) from error
        self.secrets.note_bound(log)

    def _start_servers(self, directory: DataDirectory) -> None:
        secrets = self._secrets = Secrets(directory.path / SECURE_FOLDER)
        self._redis = redis = self._new_redis(directory.path)
        if not redis.encrypted:
            self._say(
                "This redis-server was built without TLS: Redis has passwords and rights, and its "
                "connections, on the loopback address, are not encrypted"
            )
        self._announced_start(redis)
        Authority(secrets.directory).issue(ADMIN, secrets.directory / ADMIN_FILE)
        self._broker = broker = self._new_broker(directory.path)
        self._announced_start(broker)
        secrets.write_settings(
            broker.address,
            broker.internal_address,
            redis.url,
            self.prefix,
            replication=min(self._count_of_brokers, REPLICAS),
        )
        self._set_up(secrets)
        self._worker_environment["TURNSTILE_CONFIG"] = str(secrets.settings_of("worker"))

    def _new_redis(self, directory: Path) -> SecureRedis:
        users = {
            role: (self.secrets.passwords[role], rights(known.redis, self.prefix))
            for role, known in ROLES.items()
            if known.redis
        }
        return SecureRedis(directory, self.secrets.directory, users, hold=self._hold)

    def _new_broker(self, directory: Path) -> SecureBroker | SecureCluster:
        secrets, count = self.secrets.directory, self._count_of_brokers
        if count == 1:
            return SecureBroker(directory, secrets, **self._broker_options)
        return SecureCluster(directory, secrets, count, **self._broker_options)

    def _set_up(self, secrets: Secrets) -> None:
        """Users, rights and topics, as the admin; those that there are stay."""
        self._say("Making users, rights and topics")
        admin = replace(secrets.config_of("admin"), partitions=self.partitions)
        try:
            set_passwords(admin, secrets.passwords)
            grant(admin, {f"User:{role}": rules_of(role, self.prefix) for role in ROLES})
            ensure_topics(admin)
            ensure_answer_topics(admin)
        except TopicsUnavailable as error:
            raise LocalStackError(f"The users and rights could not be made: {error}") from error
