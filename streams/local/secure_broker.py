"""A broker that knows who is there: TLS everywhere, a login for clients, rights for each of them.

Three ports, all on the loopback address:

    CLIENT      SASL_SSL   users with a password (SCRAM-SHA-512), who may do what was granted
    INTERNAL    SSL        whoever has a certificate of the authority: the broker and its admin
    CONTROLLER  SSL        the same

Nobody is anonymous, and who was granted nothing may do nothing.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from streams.local.broker import KafkaBroker, registered_cluster
from streams.local.certificates import Authority
from streams.local.children import Child
from streams.local.ports import LOOPBACK

BROKER, ADMIN = "turnstile-broker", "turnstile-admin"
"""The names in the two certificates; both may do everything."""


class SecureBroker(KafkaBroker):
    """A broker whose certificates are in a directory of secrets."""

    port_count = 3  # clients, controller, internal

    def __init__(self, directory: Path | str, secrets: Path, **options: Any) -> None:
        """Describe the broker; ``start()`` starts it.

        Args:
            directory: as ``KafkaBroker`` has it.
            secrets: a directory that others cannot read, for certificates and keys.
            options: of ``KafkaBroker``.
        """
        super().__init__(directory, **options)
        self._given = dict(self._settings)
        self._keys = secrets / "broker.pem"
        self.admin_certificate = secrets / "admin.pem"
        self._authority = Authority(secrets)
        self._authority.issue(BROKER, self._keys)
        self._authority.issue(ADMIN, self.admin_certificate)

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
            "super.users": f"User:CN={BROKER};User:CN={ADMIN}",
            **self._given,
        }
        return super()._write_properties((client, controller))

    def _is_ready(self, child: Child, port: int) -> bool:
        context = ssl.create_default_context(cafile=str(self._authority.certificate))
        context.load_cert_chain(self.admin_certificate)
        return registered_cluster(self._internal, context) == self._cluster_file.read_text()
