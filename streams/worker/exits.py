"""Ends a worker at once, with the reason, if something is not as expected.

Nothing is lost: the next owner of the partition continues from the state in Redis.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

logger = logging.getLogger("turnstile.worker")

EXIT_RESTART = 75
"""The exit status that asks to be restarted: fenced, Redis or Kafka unavailable, or a bug."""


def end_process(why: str, error: BaseException | None = None) -> NoReturn:
    """End this process without clean-up, which could acknowledge or publish something."""
    logger.critical("the worker exits: %s", why, exc_info=error)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(EXIT_RESTART)
