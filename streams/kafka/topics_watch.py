"""Reads the state of the topics without blocking the event loop."""

from __future__ import annotations

import asyncio

from streams.kafka.seen import TopicsSeen
from streams.kafka.topics import Topics


class KafkaTopics:
    """Runs the blocking client of the topics in another thread."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def look(self) -> TopicsSeen:
        """Return the current state of the topics."""
        return await asyncio.to_thread(self._topics.look)

    async def close(self) -> None:
        """Disconnect."""
        await asyncio.to_thread(self._topics.close)
