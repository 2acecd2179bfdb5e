"""The settings of aiokafka clients. Kept apart, since clients of the service have no aiokafka."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka.abc import AbstractTokenProvider

from streams.config import Config
from streams.kafka.security import security_with
from streams.kafka.tokens import token_function


class AsyncTokens(AbstractTokenProvider):
    """The token provider of aiokafka. The function runs in a thread, because it may block."""

    def __init__(self, config: Config) -> None:
        self._token = token_function(config)

    async def token(self) -> str:
        """Return a token."""
        return await asyncio.to_thread(self._token)


def connection_settings(config: Config) -> dict[str, Any]:
    """Return the settings of an aiokafka client, or raise ``ConfigurationError``."""
    return {"bootstrap_servers": config.kafka, **security_with(config, AsyncTokens)}
