"""A broker with TLS on every port, logins for clients, and rights for each user.

It has three ports, all on the loopback address:

    CLIENT      SASL_SSL   users with a password (SCRAM-SHA-512) and the rights granted to them
    INTERNAL    SSL        the broker and its admin, each with a certificate of the authority
    CONTROLLER  SSL        the broker, with its certificate

No client is anonymous, and a user without granted rights may do nothing.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streams.local.broker import KafkaBroker, registered_cluster
from streams.local.certificates import Authority
from streams.local.children import Child
from streams.local.ports import LOOPBACK

ADMIN = "turnstile-admin"
"""The name in the admin's certificate; like the broker, the admin may do everything."""
ADMIN_FILE = "admin.pem"


class SecureBroker(KafkaBroker):
    """A broker whose certificates are in a directory of secrets."""

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
            "super.users": f"User:CN={self._name};User:CN={ADMIN}",
        }

    def _is_ready(self, child: Child, port: int) -> bool:
        context = ssl.create_default_context(cafile=str(self._authority.certificate))
        context.load_cert_chain(self._keys)
        return registered_cluster(self._internal, context) == self._cluster_file.read_text()
