"""Workers in virtual time."""

import pytest

from tests.unit.worker.processors import run_in_virtual_time


@pytest.fixture
def virtual_time():
    """Let a test that is a coroutine run in a loop in which sleeping takes no time."""
    return run_in_virtual_time
