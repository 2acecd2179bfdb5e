"""The error of programs that observe a service."""

from __future__ import annotations


class Unavailable(Exception):
    """Kafka or Redis does not answer, or no worker has reported a value yet."""
