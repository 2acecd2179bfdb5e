"""What a record writes of rosters that share users: of whom something changed, and of them all."""

import numpy as np
import pytest

from streams.records import CloseDataset, RosterDecision
from tests.unit.ledger.roster_logs import RosterLog, prices

ORDERS = [1.5 + number for number in range(32)]
POLICY = {"measure": "renyi", "orders": ORDERS, "budget": [100.0] * 32, "user_ids": "integer"}
MEMBERS = 60
USERS = np.arange(MEMBERS).astype("<i8").tobytes()


def rostered(inner: int, steps: int = 0) -> RosterLog:
    """Datasets within one, each with a roster of all users, who have taken so many steps there."""
    log = RosterLog()
    log.create("o", **POLICY)
    for number in range(inner):
        name = f"i{number}"
        log.create(name, parents=["o"], **POLICY)
        log.open(name)
        log.enrol(USERS, dataset=name)
        for step in range(steps):
            units = b"" if step else 2 * prices(1000.0, "renyi", ORDERS)
            answer = log.step(step, units, MEMBERS, dataset=name)
            assert isinstance(answer, RosterDecision)
    return log


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_charge_writes_no_more_for_users_on_many_rosters(steps):
    written = []
    for inner in (1, 8):
        log = rostered(inner, steps)
        log.open("o")
        log.charge(0, USERS, np.ones(MEMBERS), dataset="o")
        written.append(len(log.changes[-1]))
    assert written[1] <= written[0] + 512


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_closing_a_dataset_writes_each_user_once(steps):
    written = []
    for inner in (1, 8):
        log = rostered(inner, steps)
        log.send(CloseDataset(dataset="o", request="c"))
        written.append(len(log.changes[-1]))
    runs = 200 * 8  # every run is closed, and its roster is gone
    assert written[1] <= written[0] + runs
    if steps < 2:  # no charge has accrued
        assert written[1] <= 4096
