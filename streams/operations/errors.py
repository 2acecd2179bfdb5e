"""What can go wrong for someone who looks at a service."""

from __future__ import annotations


class Unavailable(Exception):
    """Kafka or Redis does not answer, or nobody has said yet what is asked for."""
