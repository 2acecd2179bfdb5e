"""Mutations of a repartition."""

from __future__ import annotations

from typing import Any

from streams.ledger import accounts, ledger
from tests.simulation.mutations.registry import Patches, mutation, replaced


@mutation
def spending_not_imported() -> Patches:
    """Users have spent nothing in the new log."""
    real = accounts.Accounts.numbers

    def numbers(self: Any, slots: Any) -> Any:
        found = real(self, slots)
        return found | {"spent": found["spent"] * 0}

    yield replaced(accounts.Accounts, "numbers", numbers)


@mutation
def retired_logs_decide() -> Patches:
    """A retired log still decides requests, beside its successor."""
    yield replaced(ledger, "check_live", lambda *_: None)
