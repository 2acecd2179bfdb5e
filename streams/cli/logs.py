"""A log whose lines programs read: one JSON object each."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from streams.config import redact


def log_as_json(level: str, stream: TextIO) -> None:
    """Let everything that is logged, and what Python warns of, go there as JSON."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler])
    logging.captureWarnings(True)


class JsonLines(logging.Formatter):
    """A record of the log as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if record.exc_info:
            line["traceback"] = redact(self.formatException(record.exc_info))
        return msgspec.json.encode(line).decode()
