"""Logs for tests of the ledger."""

import pytest

from streams.ledger import accounts, collecting, columns, roster_members, state
from tests.unit.ledger.audited import AuditedLog


@pytest.fixture(autouse=True)
def _audit():
    """Audit every log that a test has made when the test is over."""
    AuditedLog.made.clear()
    yield
    for log in AuditedLog.made:
        log.audit()


@pytest.fixture
def short_pages(monkeypatch):
    """Pages of four rows, and blocks of three norm events."""
    monkeypatch.setattr(collecting, "BLOCK", 3)
    monkeypatch.setattr(columns, "_PAGE_BITS", 2)
    for module in (columns, accounts, roster_members, state):
        monkeypatch.setattr(module, "PAGE_ROWS", 4)
