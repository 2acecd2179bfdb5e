"""The settings with which aiokafka clients reach Kafka."""

from __future__ import annotations

from typing import Any

from streams.config import Config
from streams.kafka.security import security


def connection_settings(config: Config) -> dict[str, Any]:
    """Return the settings of an aiokafka client.

    Raises:
        ConfigurationError: a certificate cannot be used.
    """
    return {"bootstrap_servers": config.kafka, **security(config)}
