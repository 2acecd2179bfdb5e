"""Logs for tests of the ledger."""

import pytest

from streams.ledger import columns, kept_accounts, members, rosters, state
from tests.unit.ledger.audited import AuditedLog


@pytest.fixture(params=[1, 2], ids="version {}".format)
def new_log(request):
    """Makes logs of one version, which are audited when the test is over."""
    yield from _audited(request.param)


@pytest.fixture
def new_log_of_2():
    """The same, of version 2 alone."""
    yield from _audited(2)


def _audited(version):
    logs = []

    def new(**place) -> AuditedLog:
        logs.append(AuditedLog(v=version, **place))
        return logs[-1]

    yield new
    for log in logs:
        log.audit()


@pytest.fixture
def short_pages(monkeypatch):
    """Pages of four rows."""
    monkeypatch.setattr(columns, "_PAGE_BITS", 2)
    for module in (columns, kept_accounts, members, rosters, state):
        monkeypatch.setattr(module, "PAGE_ROWS", 4)
