"""How a worker ends: at once, saying why, whenever something is not as expected.

Nothing is lost by it: whoever owns the partition next continues from what Redis holds.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

logger = logging.getLogger("turnstile.worker")

EXIT_RESTART = 75
"""Start me again: the world changed under me (fenced, Redis or Kafka away, a bug)."""


def end_process(why: str, error: BaseException | None = None) -> NoReturn:
    """End this process without any clean-up, which could acknowledge or publish something."""
    logger.critical("worker ends: %s", why, exc_info=error)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(EXIT_RESTART)
