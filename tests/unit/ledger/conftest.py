"""Logs for tests of the ledger."""

import pytest

from streams.ledger import accounts, columns, roster_members, state
from tests.unit.ledger.audited import AuditedLog


@pytest.fixture
def new_log():
    """Make logs that are audited when the test is over."""
    logs = []

    def new(**place) -> AuditedLog:
        logs.append(AuditedLog(**place))
        return logs[-1]

    yield new
    for log in logs:
        log.audit()


@pytest.fixture
def short_pages(monkeypatch):
    """Pages of four rows."""
    monkeypatch.setattr(columns, "_PAGE_BITS", 2)
    for module in (columns, accounts, roster_members, state):
        monkeypatch.setattr(module, "PAGE_ROWS", 4)
