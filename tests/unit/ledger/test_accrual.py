"""What a record writes of rosters that share users: of whom something changed, and of them all."""

import copy

import numpy as np
import pytest

from streams.ledger.columns import PAGE_ROWS
from streams.ledger.ledger import Ledger
from streams.records import CloseDataset, Erase, RosterDecision
from tests.unit.ledger.ledgers import admitted, rebuilt
from tests.unit.ledger.roster_logs import LEVELS, RosterLog, begun, prices

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
        log.audit()
    assert written[1] <= written[0] + 512


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_closing_a_dataset_writes_each_user_once(steps):
    written = []
    for inner in (1, 8):
        log = rostered(inner, steps)
        log.send(CloseDataset(dataset="o", request="c"))
        written.append(len(log.changes[-1]))
        log.audit()
    runs = 200 * 8  # every run is closed, and its roster is gone
    assert written[1] <= written[0] + runs
    if steps < 2:  # no charge has accrued
        assert written[1] <= 4096


def test_closing_a_settled_roster_writes_no_users():
    log = rostered(1, steps=1)
    log.close("i0")
    assert len(log.changes[-1]) < 512
    log.audit()


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))]
)
def test_what_is_noted_is_all_that_changed_and_no_charge_accrues_twice(seed):
    """Balances and members as they are stored, after every record, against those in memory."""
    rng = np.random.default_rng(seed)
    log, users, steps = RosterLog(), np.arange(12), {}
    on_exhaustion = ["halt", "clip"][seed % 2]
    budgets = {"o": 0.5, "a": 0.3, "b": 0.2, "c": 0.4}
    for name, parent in {"o": None, "a": "o", "b": "a", "c": "o"}.items():
        about = {"parents": [parent]} if parent else {}
        log.create(name, budgets[name], on_exhaustion=on_exhaustion, **about)
        for run in (f"{name}-r", f"{name}-s", "charged"):
            log.open(name, run)
            steps[name, run] = 0
    sizes = dict.fromkeys(steps, 0)
    depth = {"o": 1, "a": 2, "b": 3, "c": 2}
    for _ in range(60):
        name = "oabc"[rng.integers(4)]
        run = f"{name}-{'rs'[rng.integers(2)]}"
        about = {"dataset": name, "run": run}
        size = sizes[name, run]
        match rng.integers(12):
            case 0:
                added = rng.permutation(np.arange(size, min(size + 6, 12)))
                if log.enrol(added.astype("<i8").tobytes(), size, **about).members:
                    sizes[name, run] = size + len(added)
            case 1 | 2:
                about["run"] = "charged"
                some = rng.choice(users, rng.integers(1, 6), replace=False)
                norms = rng.random(len(some)) / 8
                log.charge(steps[name, "charged"], some.tolist(), norms, **about)
                steps[name, "charged"] += 1
            case 3 if rng.random() < 0.2:
                log.send(Erase(request="f", user=int(rng.choice(users))))
            case 4 if rng.random() < 0.2:
                log.close(name, run)
            case _ if size:
                moved = np.flatnonzero(rng.random(size) < 0.1).tolist()
                scale = float(rng.choice([20.0, 40.0]))
                fresh = not steps[name, run] or rng.random() < 0.1
                units = prices(scale) * depth[name] if fresh else b""
                about |= {"positions": moved, "levels": rng.integers(0, LEVELS, len(moved))}
                answer = log.step(steps[name, run], units, size, **about)
                steps[name, run] += isinstance(answer, RosterDecision)
        assert stored(rebuilt(log.changes)) == stored(log.ledger)
        check_accruals(log.ledger)
        if rng.random() < 0.1:
            log.hand_over(rebuilt(log.changes))
    log.audit()


def with_accrued() -> RosterLog:
    """A roster whose members have accrued two of three steps, each of 1/32, and another run."""
    log = begun(range(4), budget=4.5 / 32, odometer_step=[2**42])  # no odometer rises
    for step in range(3):
        log.step(step, b"" if step else prices(4.0))
    log.open(run="aside")
    return log


def test_charge_by_norms_counts_what_rosters_have_accrued():
    log = with_accrued()
    assert admitted(log.charge(0, [0, 1], [1.2, 1.5], run="aside")) == [True, False]
    assert log.spent()[0] > log.spent()[1] == log.spent()[2]
    log.audit()


def test_accrued_charges_of_users_who_are_charged_nothing_are_stored():
    log = with_accrued()
    log.charge(0, [0, 1], [0.0, 1.5], run="aside")
    assert stored(rebuilt(log.changes)) == stored(log.ledger)
    assert len(set(log.spent().values())) == 1


def test_members_of_pages_newer_than_their_enrolment_are_loaded_once():
    log = begun(range(4))
    log.enrol([9, 8], first=4)
    pages = {name: log.ledger.state.take_page(name) for name in log.ledger.state.unmerged()}
    ledger = Ledger(0, 1)
    ledger.state.load(pages, log.changes)
    members = ledger.state.rosters.members["d", "r"]
    assert members.slots.tolist() == log.ledger.state.rosters.members["d", "r"].slots.tolist()
    log.hand_over(ledger)
    log.step(0, prices(4.0), members=6)
    log.audit()


def stored(ledger: Ledger) -> dict:
    """Return the pages of accounts and of members; the ledger still counts them as changed."""
    state = copy.deepcopy(ledger.state)
    holders = {**state.datasets, **state.rosters.rows}
    return {
        name: [held.take_page(number) for number in range(-(-len(held) // PAGE_ROWS))]
        for name, held in holders.items()
    }


def check_accruals(ledger: Ledger) -> None:
    """A user has accrued charges on at most one of the rosters that share a budget."""
    behind: list[int] = []
    for address, members in ledger.state.rosters.members.items():
        since = members.numbers(slice(0, len(members)))["since"]
        late = np.flatnonzero(since < ledger.state.runs[address].roster_steps)
        budgets = ledger.state.policies.budgets(address[0])
        own = budgets.own.users_at(members.slots[late])
        behind += np.asarray(own).tolist()
    assert len(behind) == len(set(behind))
