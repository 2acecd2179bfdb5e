"""How the clients of aiokafka, and Faust, reach Kafka."""

from __future__ import annotations

from typing import Any

from faust.auth import SASLCredentials, SSLCredentials

from streams.config import Config
from streams.topics.security import security


def connection_settings(config: Config) -> dict[str, Any]:
    """Those of a client of aiokafka.

    Raises:
        ConfigurationError: certificates that cannot be used.
    """
    return {"bootstrap_servers": config.kafka, **security(config)}


def credentials(config: Config) -> SASLCredentials | SSLCredentials | None:
    """The same for Faust, which has names of its own.

    Raises:
        ConfigurationError: certificates that cannot be used.
    """
    settings = security(config)
    context = settings.get("ssl_context")
    if "sasl_mechanism" in settings:
        return SASLCredentials(
            username=config.kafka_username,
            password=config.kafka_password,
            mechanism=config.kafka_mechanism,
            ssl_context=context,
        )
    return None if context is None else SSLCredentials(context)
