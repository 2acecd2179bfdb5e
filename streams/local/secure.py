"""An installation on this machine with TLS, a login for each role, and the rights of that role.

It sets up what an operator sets up elsewhere: an authority and certificates, a Kafka user and a
Redis user per role with the rights that ``turnstile acl`` prints, the topics, and keys with which
workers sign decisions and clients sign requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex, token_urlsafe
from typing import Any

import trustme
from cryptography.hazmat.primitives import serialization

from streams.config import Config
from streams.kafka.access import ROLES, rules_of
from streams.kafka.answer_topics import ensure_answer_topics
from streams.kafka.granting import grant, set_passwords
from streams.kafka.results import TopicsUnavailable
from streams.kafka.topics import ensure_topics
from streams.local.broker import KafkaBroker
from streams.local.directory import DataDirectory, make_private, write_private
from streams.local.launch_errors import LocalFailure, LocalStackError, started
from streams.local.redis_server import RedisServer
from streams.local.server_process import LOOPBACK
from streams.local.stack import SECURE_FOLDER, LocalStack
from streams.records.signatures import Signer, new_keys
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
                LocalFailure.INVALID_CALL,
                f"A secure stack starts its own broker and Redis: leave out {', '.join(refused)}.",
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
        return started(self._secrets, "The stack")

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
            raise LocalStackError(
                LocalFailure.NOT_READY, f"The users and rights could not be created: {error}"
            ) from error


class Authority:
    """Signs the certificates of one installation.

    Attributes:
        certificate: the file with the authority's certificate, which clients trust.
    """

    def __init__(self, directory: Path) -> None:
        """Load the authority from a directory; create it if the directory has none."""
        self.certificate = directory / "ca.pem"
        key = directory / "ca.key"
        if not key.exists():
            made = trustme.CA()
            write_private(self.certificate, made.cert_pem.bytes())
            write_private(key, made.private_key_pem.bytes())  # last: then both exist
        self._own = trustme.CA.from_pem(self.certificate.read_bytes(), key.read_bytes())

    def issue(self, name: str, path: Path) -> None:
        """Write a new key and its certificate for a name on this machine into one file."""
        made = self._own.issue_cert(
            LOOPBACK,
            "localhost",
            common_name=name,
            organization_unit_name=_UNIT,
            organization_name=_ORGANIZATION,
        )
        key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,  # Kafka reads no other
            serialization.NoEncryption(),
        )
        write_private(path, key + made.cert_chain_pems[0].bytes())


_UNIT, _ORGANIZATION = "local", "dp-turnstile"


def superusers(names: Iterable[str]) -> str:
    """Return the broker setting that lets certificates with these names do everything."""
    return ";".join(f"User:CN={name},OU={_UNIT},O={_ORGANIZATION}" for name in names)


_TRUST_STORES = {  # private key -> file of trusted public keys: of workers, of answerers
    "signing.key": "trusted.keys",
    "answer-signing.key": "answer.keys",
}
CLIENTS = ("trainer", "answerer")
"""The roles that sign their requests."""


class Secrets:
    """The passwords and keys in one directory.

    Attributes:
        passwords: each role's password, the same for Kafka and Redis.
        request_keys: the public key of each role that signs its requests, for access lists.
    """

    def __init__(self, directory: Path) -> None:
        """Load the secrets of a directory, and create those that are missing."""
        make_private(directory)
        self.directory = directory
        self.passwords = {role: self._kept(f"{role}.password", token_urlsafe) for role in ROLES}
        for private, store in _TRUST_STORES.items():
            public = self._public(private)
            if not (directory / store).exists():  # the operator may have added keys
                write_private(directory / store, f"{public}\n".encode())
        self.request_keys = {role: self._public(f"{role}.key") for role in CLIENTS}
        for role, public in self.request_keys.items():
            write_private(directory / f"{role}.public", f"{public}\n".encode())
        self._kept("erasure.keys", lambda: token_hex(32))

    def settings_of(self, role: str) -> Path:
        """Return the settings file of a role, or of the admin."""
        return self.directory / f"{role}.toml"

    def write_settings(
        self, kafka: str, internal: str, redis: str, prefix: str, replication: int = 1
    ) -> None:
        """Write the settings file of every role, with the current addresses."""
        common = {
            "prefix": prefix,
            "replication": str(replication),
            "kafka_ca": "ca.pem",
            "trusted_keys_file": "trusted.keys",
            "answer_keys_file": "answer.keys",
        }
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
            if known.decides:
                settings["signing_key_file"] = "signing.key"
            if known.consumes:
                settings["signing_key_file"] = "answer-signing.key"
            if known.redis in ("audit", "decide"):  # these roles replay the log
                settings["erasure_keys_file"] = "erasure.keys"
            if role in CLIENTS:
                settings["request_key_file"] = f"{role}.key"
            self._write(role, settings)
        admin = {"kafka": internal, "kafka_security": "SSL", "kafka_certificate": "admin.pem"}
        self._write("admin", {**common, **admin})

    def config_of(self, role: str) -> Config:
        """Return the settings of a role, regardless of environment variables."""
        return Config.load(self.settings_of(role), {})

    def _public(self, private: str) -> str:
        """Return the public key of a private key, which is created if it is missing."""
        return Signer(self._kept(private, lambda: new_keys()[0])).public

    def _kept(self, name: str, make: Callable[[], str]) -> str:
        path = self.directory / name
        if not path.exists():
            write_private(path, f"{make()}\n".encode())
        return path.read_text(encoding="utf-8").strip()

    def _write(self, role: str, settings: Mapping[str, str]) -> None:
        lines = [f'{name} = "{value}"\n' for name, value in settings.items()]
        write_private(self.settings_of(role), "".join(lines).encode())


ADMIN = "turnstile-admin"
"""The name in the admin's certificate; like the broker, the admin may do everything."""
ADMIN_FILE = "admin.pem"


class SecureBroker(KafkaBroker):
    """A broker with TLS on every port, logins for clients, and rights for each user.

    CLIENT      SASL_SSL   users with a password (SCRAM-SHA-512) and the rights granted to them
    INTERNAL    SSL        the broker and its admin, each with a certificate of the authority
    CONTROLLER  SSL        the broker, with its certificate

    No client is anonymous, and a user without granted rights may do nothing.
    """

    port_count = 3  # clients, controller, internal

    def __init__(
        self,
        directory: Path | str,
        secrets: Path,
        *,
        certified_as: str = "broker",
        **options: Any,
    ) -> None:
        """Describe the broker; ``start()`` starts it.

        Args:
            directory: as in ``KafkaBroker``.
            secrets: a directory that only its owner can read, for certificates and keys.
            certified_as: the name in the broker's certificate.
            options: of ``KafkaBroker``.
        """
        super().__init__(directory, **options)
        self._name = certified_as
        self._keys = secrets / f"{certified_as}.pem"
        self._authority = Authority(secrets)
        self._authority.issue(certified_as, self._keys)

    @property
    def internal_address(self) -> str:
        """``host:port`` for the admin."""
        host = self.address.rpartition(":")[0]  # raises before the first start
        return f"{host}:{self._internal}"

    def _listeners(self, ports: tuple[int, ...]) -> Mapping[str, str]:
        client, controller, self._internal = ports
        addresses = f"CLIENT://{LOOPBACK}:{client},INTERNAL://{LOOPBACK}:{self._internal}"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        return {
            "listeners": f"{addresses},CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": addresses,
            "listener.security.protocol.map": "CLIENT:SASL_SSL,INTERNAL:SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": "INTERNAL",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.client.scram-sha-512.sasl.jaas.config": scram,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._keys),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._authority.certificate),
            "listener.name.internal.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": superusers((self._name, ADMIN)),
        }


class SecureRedis(RedisServer):
    """A Redis with the given users, each with a password and the rights of a role, and no others.

    Connections are not encrypted: the server listens on the loopback address only, and the Redis of
    the extra ``local`` has no TLS. No password is an argument of a process, which other users of
    the machine could read.

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
        write_private(self.users_file, _file_of_users(users))


def _file_of_users(users: Mapping[str, tuple[str, Sequence[str]]]) -> bytes:
    lines = ["user default off"]
    for name, (password, allowed) in users.items():
        digest = hashlib.sha256(password.encode()).hexdigest()
        lines.append(f"user {name} on #{digest} {' '.join(allowed)}")
    return "\n".join([*lines, ""]).encode()
