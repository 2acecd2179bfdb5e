"""Steps kept by their levels take a byte a user, and are charged once when they are put back."""

import msgspec
import numpy as np
import pytest

from streams.ledger.ledger import Delta
from tests.unit.ledger.roster_logs import LEVELS, POLICIES, RosterLog, begun, prices


def by_level(log: RosterLog) -> int:
    """How many steps of a log are kept by their levels."""
    changes = [msgspec.msgpack.decode(packed, type=Delta) for packed in log.changes]
    rows = [row for one in changes for accounts in one.accounts for row in accounts.rows]
    return sum("spent+" in row.values for row in rows)


def priced(policy: str, scale: float) -> bytes:
    return prices(scale, POLICIES[policy]["measure"], POLICIES[policy].get("orders"))


@pytest.mark.slow
def test_they_take_two_bytes_a_user_beside_their_cost_table():
    users = 5000
    log = begun(range(users), **(POLICIES["per-user order"] | {"budget": [9.0, 9.0, 9.0]}))
    rng = np.random.default_rng(0)
    units = priced("per-user order", 30.0)
    for step in range(4):
        levels = rng.integers(1, LEVELS + 1, users)
        log.step(step, b"" if step else units, members=users, levels=levels)
    one = len(log.changes[-1])
    assert by_level(log) == 4
    assert 2 * users < one < 2 * users + len(units) + 1500
