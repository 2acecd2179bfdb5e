"""Brokers that know who is there: TLS everywhere, a login for clients, rights for each of them.

Three ports of each, all on the loopback address:

    CLIENT      SASL_SSL   users with a password (SCRAM-SHA-512), who may do what was granted
    INTERNAL    SSL        whoever has a certificate of the authority: the brokers and their admin
    CONTROLLER  SSL        the brokers, in the same way

Nobody is anonymous, and who was granted nothing may do nothing. Each broker has a certificate of
its own; users and rights are in the log that the brokers share, so that all of them know the same.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streams.local.broker import KafkaBroker, registered_cluster
from streams.local.certificates import Authority
from streams.local.children import Child
from streams.local.cluster import KafkaCluster
from streams.local.ports import LOOPBACK

ADMIN = "turnstile-admin"
"""The name in its certificate; like the brokers, it may do everything."""
ADMIN_FILE = "admin.pem"
_PORTS = 3  # clients, controller, internal


class SecureBroker(KafkaBroker):
    """A broker whose certificates are in a directory of secrets."""

    port_count = _PORTS

    def __init__(
        self,
        directory: Path | str,
        secrets: Path,
        *,
        number: int = 1,
        count: int = 1,
        **options: Any,
    ) -> None:
        """Describe the broker; ``start()`` starts it.

        Args:
            directory: as ``KafkaBroker`` has it.
            secrets: a directory that others cannot read, for certificates and keys.
            number: which of the brokers it is.
            count: how many there are, each of which may do what any other does.
            options: of ``KafkaBroker``.
        """
        super().__init__(directory, **options)
        self._given = dict(self._settings)
        self._brokers = [f"turnstile-broker-{one}" for one in range(1, count + 1)]
        self._keys = secrets / f"broker-{number}.pem"
        self._authority = Authority(secrets)
        self._authority.issue(self._brokers[number - 1], self._keys)

    @property
    def internal_address(self) -> str:
        """``host:port`` for the admin."""
        host = self.address.rpartition(":")[0]  # which says so if there is none yet
        return f"{host}:{self._internal}"

    def _write_properties(self, ports: tuple[int, ...]) -> Path:
        client, controller, self._internal = ports
        addresses = f"CLIENT://{LOOPBACK}:{client},INTERNAL://{LOOPBACK}:{self._internal}"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        self._settings = {
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
            "super.users": ";".join(f"User:CN={name}" for name in (*self._brokers, ADMIN)),
            **self._given,
        }
        return super()._write_properties((client, controller))

    def _is_ready(self, child: Child, port: int) -> bool:
        context = ssl.create_default_context(cafile=str(self._authority.certificate))
        context.load_cert_chain(self._keys)
        return registered_cluster(self._internal, context) == self._cluster_file.read_text()


class SecureCluster(KafkaCluster):
    """Several of them, of which one may be lost."""

    port_count = _PORTS
    brokers: Sequence[SecureBroker]

    def __init__(self, directory: Path | str, secrets: Path, count: int, **options: Any) -> None:
        """Describe the brokers; ``start()`` starts them.

        Args:
            directory: as ``KafkaCluster`` has it.
            secrets: a directory that others cannot read, for certificates and keys.
            count: how many.
            options: of ``KafkaCluster``.
        """
        self._secrets, self._count = secrets, count
        super().__init__(directory, count, **options)

    @property
    def internal_address(self) -> str:
        """``host:port`` of each for the admin, comma separated."""
        return ",".join(broker.internal_address for broker in self.brokers)

    def _new_broker(self, number: int, directory: Path, **options: Any) -> SecureBroker:
        return SecureBroker(directory, self._secrets, number=number, count=self._count, **options)
