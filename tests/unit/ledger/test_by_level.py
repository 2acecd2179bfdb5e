"""Steps kept by their levels take a byte a user, and are charged once when they are put back."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from streams.ledger.accounts import Balances
from streams.ledger.ledger import Delta, ledger_of
from streams.ledger.partition_errors import UnknownState
from streams.records import Rejected
from streams.records.digests import NO_TOPIC
from tests.unit.ledger.roster_logs import LEVELS, POLICIES, RosterLog, begun, prices

USERS = 10


def by_level(log: RosterLog) -> int:
    """How many steps of a log are kept by their levels."""
    changes = [msgspec.msgpack.decode(packed, type=Delta) for packed in log.changes]
    rows = [row for one in changes for accounts in one.accounts for row in accounts.rows]
    return sum("spent+" in row.values for row in rows)


def priced(policy: str, scale: float) -> bytes:
    return prices(scale, POLICIES[policy]["measure"], POLICIES[policy].get("orders"))


def restored(
    log: RosterLog, pages: dict[str, bytes], changes: list[bytes]
) -> dict[str, bytes | None]:
    """Let another owner go on from what is kept, who has to have what the log says; its pages."""
    spent = log.spent()
    kept = SimpleNamespace(pages=pages, changes=changes)
    log.hand_over(ledger_of(kept, 0, 1, NO_TOPIC, log.ledger.chain))
    assert log.spent() == spent
    compacted = {name: log.ledger.state.take_page(name) for name in log.ledger.state.unmerged()}
    log.audit()
    return pages | compacted


@pytest.mark.slow
@pytest.mark.usefixtures("short_pages")
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("policy", POLICIES)
def test_they_are_charged_once_whichever_pages_are_newer_than_changes(policy, seed):
    rng = np.random.default_rng(seed)
    log = begun(range(USERS), **POLICIES[policy])
    log.open(run="aside")
    pages = {name: log.ledger.state.take_page(name) for name in log.ledger.state.unmerged()}
    known = len(log.changes)
    step = aside = 0
    # All others are kept by what was spent after them, which hides what was charged before.
    shares = [0.5, 0.2, 0.1, 0.2] if seed % 2 else [0.9, 0.0, 0.0, 0.1]
    for kind in rng.choice(["dense", "quiet", "dearer", "aside"], 24, p=shares):
        if kind == "aside":
            users = np.sort(rng.choice(USERS, 3, replace=False)).tolist()
            answer = log.charge(aside, users, [0.5] * 3, scale=9.0, run="aside")
            aside += 1
        else:
            units = priced(policy, 17.5 if kind == "dearer" else 30.0)
            levels = rng.integers(0, LEVELS + 1, USERS) if kind == "dense" else ()
            new = b"" if step and kind != "dearer" else units
            answer = log.step(step, new, members=USERS, levels=levels)
            step += 1
        assert not isinstance(answer, Rejected)
        for name in log.ledger.state.unmerged():
            if rng.random() < 0.1:
                pages[name] = log.ledger.state.take_page(name)
    assert by_level(log) > 2
    pages = restored(log, pages, log.changes[known:])
    restored(log, pages, [])


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


def test_a_release_that_does_not_know_them_reads_neither_changes_nor_pages():
    log = begun(range(USERS), measure="zcdp", budget=1.0)
    log.step(0, prices(), members=USERS, levels=[LEVELS] * USERS)
    (accounts,) = msgspec.msgpack.decode(log.changes[-1], type=Delta).accounts
    rows = Balances()
    rows.grow(USERS)
    (kept,) = [row for row in accounts.rows if "spent+" in row.values]
    with pytest.raises(UnknownState):
        rows.apply_delta(kept)
    with pytest.raises(UnknownState):
        rows.load_page(0, log.ledger.state.datasets["d"].take_page(0).columns)
