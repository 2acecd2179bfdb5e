"""Looks at the topics without holding up the event loop."""

from __future__ import annotations

import asyncio

from streams.topics.seen import TopicsSeen
from streams.topics.topics import Topics


class KafkaTopics:
    """The topics, asked from another thread: their client blocks."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def look(self) -> TopicsSeen:
        """The topics as they are now."""
        return await asyncio.to_thread(self._topics.look)

    async def close(self) -> None:
        """Disconnect."""
        await asyncio.to_thread(self._topics.close)
