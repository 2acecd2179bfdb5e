"""Charges by norms and charges of rosters obey one budget rule, and move one odometer."""

import pytest

from accounting.filters import payment
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.roster_logs import RosterLog, begun, prices

USERS = (7, 8, 9, 10)
BUDGET = 4 / 32 - 2**-44
"""The fourth step of norm 1 and noise 4 misses this budget by one unit."""


def charged_by_norms() -> RosterLog:
    log = RosterLog()
    log.create(budget=BUDGET)
    log.open()
    for step in range(4):
        log.charge(step, list(USERS), [1.0] * len(USERS), scale=4.0)
    return log


def charged_by_roster() -> RosterLog:
    log = begun(USERS, budget=BUDGET)
    for step in range(4):
        log.step(step, b"" if step else prices(4.0))
    return log


def allow_one_unit_more(patch: pytest.MonkeyPatch) -> None:
    real = payment.fits
    patch.setattr(payment, "fits", lambda spent, cost, limits, total: real(spent, cost, limits + 1))


def leave_the_odometer(patch: pytest.MonkeyPatch) -> None:
    real = payment.Payment.settle

    def settle(self, ticks):
        restart = real(self, ticks)
        return restart._replace(ticks=restart.ticks_before)

    patch.setattr(payment.Payment, "settle", settle)


@pytest.mark.parametrize("charge", [charged_by_norms, charged_by_roster])
@pytest.mark.parametrize("change", [allow_one_unit_more, leave_the_odometer])
def test_each_kind_of_charge_goes_through_the_one_rule(charge, change, monkeypatch):
    charge().audit()
    change(monkeypatch)
    with pytest.raises(AssertionError):
        charge().audit()
    AuditedLog.made.clear()
