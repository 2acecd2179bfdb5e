"""A log that continues another one with another number of partitions."""

from __future__ import annotations

from typing import Any

from streams.ledger import accounts, ledger
from tests.simulation.mutations.registry import Patches, mutation, replaced


@mutation
def spending_not_imported() -> Patches:
    """Users begin again in the new log, with nothing spent."""
    real = accounts.Accounts.numbers

    def numbers(self: Any, slots: Any) -> Any:
        found = real(self, slots)
        return found | {"spent": found["spent"] * 0}

    yield replaced(accounts.Accounts, "numbers", numbers)


@mutation
def retired_logs_decide() -> Patches:
    """A retired log goes on deciding requests, beside the log that continues it."""
    yield replaced(ledger, "check_live", lambda *_: None)
