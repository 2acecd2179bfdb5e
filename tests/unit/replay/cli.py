"""Runs commands on a service in this process."""

from __future__ import annotations

import pytest

from tests.integration.command import Done, turnstile
from tests.unit.replay.service import Archived


def command_on(archived: Archived, *arguments: str, **settings: str) -> Done:
    """Run a command; what it reads of Kafka and Redis is this service."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streams.replay.service.ServiceArchive", lambda config: archived)
        return turnstile(*arguments, environment=settings)
