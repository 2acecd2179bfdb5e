"""Rosters: who is enrolled is charged by level, exactly as the same norms would be."""

from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting import Gaussian, Laplace, PureDP, grid_norms
from accounting.measures import MEASURES
from streams.ledger import columns, rule
from streams.ledger.ledger import Channel, Ledger, ledger_of
from streams.records import Enrolled, Reason, Rejected, encode
from streams.records.digests import NO_TOPIC, page_digests
from streams.records.packing import unpack_positions
from streams.records.users import UserIds
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import Log, rebuilt
from tests.unit.ledger.roster_logs import (
    CLIP,
    LEVELS,
    OPERATIONS,
    POLICIES,
    RosterLog,
    Scenario,
    begun,
    prices,
    told,
)


def test_members_keep_their_order_and_begin_at_the_highest_level():
    answer = begun().enrol([])
    assert isinstance(answer, Enrolled)
    assert (answer.members, answer.last_step, answer.grid) == (4, -1, LEVELS)
    assert list(answer.levels) == [LEVELS] * 4
    assert answer.digests == page_digests(UserIds(np.array([7, 8, 9, 10])))


def test_nothing_accrues_before_the_first_step_at_however_many_orders():
    log = begun(measure="renyi", orders=[1.5, 8.0], budget=[1.0, 4.0])
    assert log.spent() == {user: [0, 0] for user in (7, 8, 9, 10)}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_of_nobody_is_decided_under_every_policy(policy):
    log = RosterLog()
    log.create(**POLICIES[policy])
    log.open()
    assert log.charge(0, [], []).users == 0
    assert log.enrol([]).members == 0
    measure, orders = POLICIES[policy]["measure"], POLICIES[policy].get("orders")
    assert log.step(1, prices(4.0, measure, orders), members=0).members == 0
    assert log.charge(2, [], []).users == 0
    log.audit()


def test_enrolling_the_same_users_again_changes_nothing_and_others_follow():
    log = begun()
    assert log.enrol([7, 8]).members == 4
    assert log.enrol([9, 10, 11], first=2).members == 5
    assert log.enrol([12], first=5).members == 6
    assert log.enrol([]).digests == page_digests(UserIds(np.arange(7, 13)))
    log.audit()


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        (Reason.ROSTER_CHANGED, {"users": [8, 7]}),
        (Reason.ROSTER_CHANGED, {"users": [11], "first": 5}),
        (Reason.ROSTER_CHANGED, {"users": [], "clip_norm": 2.0}),
        (Reason.ROSTER_CHANGED, {"users": [], "levels": 9}),
        (Reason.DUPLICATE_USER, {"users": [11, 8], "first": 4}),
        (Reason.DUPLICATE_USER, {"users": [11, 11], "first": 4}),
        (Reason.MIXED_USERS, {"users": ["x"], "first": 4}),
        (Reason.OLDER_ATTEMPT, {"users": [], "attempt": 1}),
        (Reason.MALFORMED, {"users": b"\0" * 9}),
        (Reason.MALFORMED, {"users": [], "levels": 0}),
        (Reason.MALFORMED, {"users": [], "clip_norm": float("nan")}),
    ],
)
def test_what_is_not_the_roster_is_refused_and_changes_nothing(reason, fields):
    log = begun()
    if reason is Reason.OLDER_ATTEMPT:
        log.open(attempt=2, request="other")
    before = log.ledger.state.rosters.members["d", "r"].slots.tolist()
    users = fields.pop("users")
    answer = log.enrol(users, **fields)
    assert isinstance(answer, Rejected)
    assert answer.reason is reason
    assert log.ledger.state.rosters.members["d", "r"].slots.tolist() == before
    assert len(log.ledger.state.datasets["d"]) == 4
    log.audit()


def test_clip_norm_with_equal_levels_is_refused():
    log = RosterLog()
    log.create()
    log.open()
    assert log.enrol([1], clip_norm=5e-324).reason is Reason.INVALID_LEVELS
    assert not log.ledger.state.rosters
    assert not len(log.ledger.state.datasets["d"])
    log.audit()


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        (Reason.ROSTER_CHANGED, {"members": 3}),
        (Reason.INVALID_COST_TABLE, {"units": prices()[8:]}),
        (Reason.INVALID_COST_TABLE, {"units": prices()[::-1]}),
        (Reason.INVALID_COST_TABLE, {"units": b"\1" + prices()[1:]}),
        (Reason.INVALID_COST_TABLE, {"units": prices(), "cost_table_digest": bytes(16)}),
        (Reason.INVALID_COST_TABLE, {"cost_table_digest": bytes(16)}),
        (Reason.INVALID_LEVELS, {"levels": [1, 2, 3]}),
        (Reason.INVALID_LEVELS, {"levels": [1, 2, 3, 11]}),
        (Reason.INVALID_LEVELS, {"positions": [1, 1], "levels": [1, 2]}),
        (Reason.INVALID_LEVELS, {"positions": [2, 1], "levels": [1, 2]}),
        (Reason.INVALID_LEVELS, {"positions": [4], "levels": [1]}),
        (Reason.INVALID_LEVELS, {"positions": [1]}),
        (Reason.INVALID_MECHANISM, {"mechanism": "poisson-gaussian", "sampling_rate": 0.5}),
        (Reason.INVALID_MECHANISM, {"sampling_rate": 0.5}),
        (Reason.INVALID_MECHANISM, {"scale": 0.0}),
        (Reason.MALFORMED, {"sampling_rate": 0.0}),
        (Reason.MALFORMED, {"positions": b"123"}),
        (Reason.MALFORMED, {"units": b"123"}),
        (Reason.STEP_OUT_OF_ORDER, {"step": 2}),
        (Reason.STEP_CONTENT_CHANGED, {"step": 0, "levels": [1, 1, 1, 1]}),
        (Reason.UNKNOWN_RUN, {"run": "other"}),
    ],
)
def test_a_step_that_cannot_be_charged_is_refused_and_changes_nothing(reason, fields):
    log = begun()
    log.step(0, prices())
    before = log.spent(), log.enrol([])
    run, step, units = fields.pop("run", "r"), fields.pop("step", 1), fields.pop("units", b"")
    log.units[run] = log.units["r"]
    answer = log.step(step, units, run=run, **fields)
    assert isinstance(answer, Rejected)
    assert answer.reason is reason
    after = log.spent(), log.enrol([])
    assert after[0] == before[0]
    assert after[1].levels == before[1].levels
    log.audit()


def test_a_run_without_a_roster_cannot_be_charged_by_one():
    log = RosterLog()
    log.create()
    log.open()
    assert log.step(0, prices(), members=0).reason is Reason.UNKNOWN_ROSTER


def test_a_repeated_roster_step_is_charged_once():
    log = begun()
    first = log.step(0, prices())
    spent = log.spent()
    assert log.step(0, prices()) == first
    assert log.step(0) == first
    assert log.spent() == spent
    log.audit()


def test_who_leaves_who_returns_and_who_has_nothing_left_is_told_once():
    unit_price = int(MEASURES["zcdp"].cost_table(Gaussian(4.0), CLIP, LEVELS)[LEVELS])
    log = begun(budget=2 * unit_price / 2**44)
    assert told(log.step(0, prices()), "halted") == []
    second = log.step(1)
    assert told(second, "exhausted") == [0, 1, 2, 3]
    third = log.step(2, positions=[1], levels=[0])  # level 0 costs nothing
    assert told(third, "halted") == [0, 2, 3]
    assert told(third, "exhausted") == []
    assert [UserIds.unpack(h.users).tolist() for h in log.halts()] == [[7, 9, 10]]
    fourth = log.step(3, positions=[0, 1], levels=[0, 1])
    assert told(fourth, "readmitted") == [0]
    assert told(fourth, "halted") == [1]
    whole = log.enrol([])
    assert unpack_positions(whole.halted, 4).tolist() == [1, 2, 3]
    assert unpack_positions(whole.exhausted, 4).tolist() == [0, 1, 2, 3]
    log.audit()


def test_budget_aware_clipping_grants_the_highest_level_that_fits():
    prices_of = MEASURES["zcdp"].cost_table(Gaussian(4.0), CLIP, LEVELS)
    budget = int(prices_of[LEVELS] + prices_of[6])
    log = begun(budget=budget / 2**44, on_exhaustion="clip")
    log.step(0, prices())
    second = log.step(1, positions=[3], levels=[5])
    assert told(second, "regranted") == [0, 1, 2]
    assert list(second.granted) == [6, 6, 6]
    assert told(second, "exhausted") == [0, 1, 2]
    assert log.spent()[10] == int(prices_of[LEVELS] + prices_of[5])
    third = log.step(2)
    assert told(third, "halted") == [0, 1, 2]
    log.audit()


def test_a_closed_run_has_no_roster_and_leaves_no_page_of_it():
    log = begun()
    log.step(0, prices())
    for name in log.ledger.state.unmerged():
        log.ledger.state.take_page(name)
    log.close()
    assert not log.ledger.state.rosters
    gone = {
        name for name in log.ledger.state.unmerged() if log.ledger.state.take_page(name) is None
    }
    assert gone == {"roster:d/r", "members:d/r/0"}
    assert not log.ledger.state.unmerged()
    log.audit()


STEPS = st.lists(
    st.tuples(
        st.sampled_from([3.0, 4.0, 17.5]),
        st.dictionaries(st.integers(0, 5), st.integers(0, LEVELS), max_size=6),
    ),
    max_size=25,
)


@given(
    steps=STEPS,
    measure=st.sampled_from(["zcdp", "gdp", "renyi"]),
    budget=st.sampled_from([0.01, 0.05, 0.3]),
)
def test_a_roster_is_charged_as_the_norms_of_its_levels_are(steps, measure, budget):
    orders = [1.5, 8.0] if measure == "renyi" else None
    policy = {
        "measure": measure,
        "budget": [budget, 4 * budget] if orders else budget,
        "orders": orders or [],
    }
    roster, explicit = begun(range(6), **policy), AuditedLog()
    explicit.create(**policy)
    explicit.open()
    levels, active = np.full(6, LEVELS), set(range(6))
    for step, (scale, moved) in enumerate(steps):
        levels[list(moved)] = list(moved.values())
        rows = sorted(moved)
        decision = roster.step(
            step,
            prices(scale, measure, orders),
            members=6,
            scale=scale,
            positions=rows,
            levels=[moved[row] for row in rows],
        )
        norms = grid_norms(CLIP, LEVELS)[levels]
        same = explicit.charge(step, list(range(6)), norms, scale=scale)
        now = set(range(6)) - set(UserIds.unpack(same.halted).tolist())
        assert roster.spent() == explicit.spent()
        active = (active - set(told(decision, "halted"))) | set(told(decision, "readmitted"))
        assert active == now
    assert odometers(roster) == odometers(explicit)
    roster.audit()
    explicit.audit()


def odometers(log: Log) -> list[bytes]:
    """What the odometer says, but for where in the log."""
    return [
        (output.key, output.value.partition(b"bound")[2])
        for outputs in log.outputs
        for output in outputs
        if output.channel is Channel.ODOMETER
    ]


@given(steps=STEPS, cut=st.integers(0, 25), compacted=st.booleans())
def test_an_owner_that_takes_over_at_any_moment_goes_on_the_same(steps, cut, compacted):
    log = begun(range(6), budget=0.05)
    pages: dict[str, bytes] = {}
    for step, (scale, moved) in enumerate(steps):
        if step == cut:
            if compacted:
                for name in log.ledger.state.unmerged():
                    if (page := log.ledger.state.take_page(name)) is None:
                        pages.pop(name, None)
                    else:
                        pages[name] = page
                ledger = Ledger(0, 1)
                ledger.state.load(pages)
                log.hand_over(ledger)
            else:
                log.hand_over(rebuilt(log.changes))
        rows = sorted(moved)
        levels = [moved[row] for row in rows]
        log.step(step, prices(scale), members=6, scale=scale, positions=rows, levels=levels)
    straight = begun(range(6), budget=0.05)
    for record in log.records[len(straight.records) :]:
        straight.send(record)
    assert log.outputs == straight.outputs
    log.audit()


@given(policy=st.sampled_from(list(POLICIES)), operations=st.lists(OPERATIONS, max_size=30))
def test_the_auditor_agrees_about_whatever_happens_to_rosters(policy, operations):
    scenario = Scenario(policy)
    for operation in operations:
        scenario.happen(*operation)
    scenario.log.audit()


class Worker:
    """Applies a log in batches, compacts page by page, and is followed by others of its kind."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.ledger = Ledger(0, 1)
        self.pages: dict[str, bytes] = {}
        self.changes: list[bytes] = []
        self.pending: list[str] = []  # listed by the compaction at work, and not taken yet
        self._covered = 0  # changes that the compaction at work makes dispensable

    def go_on(self) -> None:
        """After a record: the batch may be over, pages may be compacted, the worker may die."""
        if self.rng.random() < 0.4:
            return
        self.changes.append(encode(self.ledger.state.take_delta()))
        for _ in range(self.rng.choice([0, 0, 1, 3, 9])):
            self.compact_a_page()
        if not self.pending and self.rng.random() < 0.5:
            self.list_pages()  # and runs may close before the first is taken
        if self.rng.random() < 0.2:
            self.die()

    def commit(self, *records: bytes) -> None:
        """Apply records in a batch."""
        for record in records:
            self.ledger.apply(self.ledger.chain.last + 1, record)
        self.changes.append(encode(self.ledger.state.take_delta()))

    def list_pages(self) -> None:
        """Begin a compaction."""
        self.pending, self._covered = self.ledger.state.unmerged(), len(self.changes)

    def compact_a_page(self) -> None:
        """The next page of a compaction; with the last one, what it covers is dropped."""
        if not self.pending:
            self.list_pages()
        if self.pending:
            name = self.pending.pop(0)
            if (page := self.ledger.state.take_page(name)) is None:
                self.pages.pop(name, None)
            else:
                self.pages[name] = page
        if not self.pending:
            del self.changes[: self._covered]

    def die(self) -> None:
        """Another one takes over what is kept."""
        self.ledger, self.pending = Ledger(0, 1), []
        self.ledger.state.load(self.pages, self.changes)

    def finish(self) -> None:
        """Commit, die, and compact all there is."""
        self.changes.append(encode(self.ledger.state.take_delta()))
        self.die()
        while self.changes or self.ledger.state.unmerged():
            self.compact_a_page()


def test_interrupted_merge_leaves_no_page_of_a_closed_roster():
    log, worker = begun(), Worker(Random(0))
    worker.commit(*log.records)
    worker.finish()
    log.step(0, prices())  # changes the roster and none of its members
    log.close()
    worker.commit(log.records[-2])
    worker.commit(log.records[-1])
    while "roster:d/r" in worker.pages:
        worker.compact_a_page()
    assert "members:d/r/0" in worker.pages
    worker.finish()
    assert "members:d/r/0" not in worker.pages


@pytest.mark.usefixtures("short_pages")
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("taken", range(10))
def test_a_run_may_close_during_a_merge(taken, dies):
    log, worker = begun(range(10)), Worker(Random(0))
    worker.commit(*log.records)
    worker.list_pages()
    assert len(worker.pending) == 10  # P, a policy, a run, a roster; 3 of users, 3 of members
    for _ in range(taken):
        worker.compact_a_page()
    log.close()
    worker.commit(log.records[-1])
    while worker.pending:
        worker.compact_a_page()
    if dies:
        worker.die()
    worker.finish()
    assert not [name for name in worker.pages if name.startswith(("roster:", "members:"))]
    log.hand_over(worker.ledger)
    log.audit()


@pytest.mark.usefixtures("short_pages")
@pytest.mark.parametrize("missing", [0, 1])
def test_a_roster_with_a_missing_page_is_not_restored(missing):
    log = begun(range(10))
    pages = {name: log.ledger.state.take_page(name) for name in log.ledger.state.unmerged()}
    del pages[f"members:d/r/{missing}"]
    kept = SimpleNamespace(pages=pages, changes=[])
    with pytest.raises(ValueError) as caught:
        ledger_of(kept, 0, 1, NO_TOPIC, log.ledger.chain)
    assert "d/r" in str(caught.value)


@pytest.mark.usefixtures("short_pages")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    policy=st.sampled_from(list(POLICIES)),
    operations=st.lists(OPERATIONS, max_size=40),
    rng=st.randoms(use_true_random=False),
)
def test_a_roster_survives_compactions_that_stop_anywhere(policy, operations, rng):
    scenario = Scenario(policy)
    for operation in operations:
        scenario.happen(*operation)
    log, worker = scenario.log, Worker(rng)
    for offset, (record, outputs) in enumerate(zip(log.records, log.outputs, strict=True)):
        assert worker.ledger.apply(offset, record) == outputs
        worker.go_on()
    worker.finish()
    fresh = rebuilt(log.changes)
    # Which pages there are; the accrued charges in them depend on who took over when.
    names = {name for name in fresh.state.unmerged() if fresh.state.take_page(name) is not None}
    assert worker.pages.keys() == names
    worker.die()
    log.hand_over(worker.ledger)
    log.audit()


@pytest.mark.parametrize(
    ("measure", "mechanism", "name"),
    [
        ("pure-dp", Laplace(2.0), "laplace"),
        ("pure-dp", PureDP(), "pure-dp"),
        ("gdp", Laplace(2.0), "laplace"),  # by a cost table alone: it needs the normal quantile
        ("gdp", PureDP(), "pure-dp"),
    ],
)
def test_what_a_cost_table_can_say_is_charged(measure, mechanism, name):
    units = MEASURES[measure].cost_table(mechanism, CLIP, LEVELS)
    log = begun(measure=measure, budget=2.5 * int(units[LEVELS]) / 2**44)
    steps = [
        log.step(step, units.astype("<i8").tobytes(), mechanism=name, scale=2.0)
        for step in range(3)
    ]
    assert [told(step, "halted") for step in steps] == [[], [], [0, 1, 2, 3]]
    assert log.spent()[7] == 2 * int(units[LEVELS])


def test_unbound_members_are_examined_only_after_changes(monkeypatch):
    """At level 0 a user is bound to none, for as long as that may be: a step looks at nobody."""
    looked = []
    bind = rule.Rule.bind

    def bound(own, rows, slots, *given):
        looked.append(len(slots))
        return bind(own, rows, slots, *given)

    monkeypatch.setattr(rule.Rule, "bind", bound)
    policy = POLICIES["per-user order"]
    units = prices(30.0, "renyi", policy["orders"])
    log = begun(range(6), **policy)
    log.step(0, units, members=6, levels=[0, 0, 0, 5, 5, 5])
    log.step(1, members=6)
    log.step(2, members=6, positions=[1, 4], levels=[7, 0])
    log.step(3, members=6)
    log.step(4, units, members=6)
    log.enrol([6], first=6)
    log.step(5, members=7)
    log.step(6, members=7, positions=[0, 2], levels=[1, 1])
    assert looked == [6, 2, 7, 2]
    log.step(7, members=7)
    log.audit()
    assert log.ledger.state.datasets["d"].numbers(slice(0, 7))["bound"].tolist() == [1] * 7


def test_members_charged_by_norms_in_blocks_are_restored(monkeypatch):
    """What is the same in all rows of a block is written once, which blocks must not mix up."""
    monkeypatch.setattr(rule, "_BLOCK_NUMBERS", 64 * 64)
    orders = [1.0 + number / 8 for number in range(1, 65)]
    policy = {"measure": "renyi", "orders": orders, "budget": [50.0] * 64}
    users = list(range(140))
    log = begun(users, **policy)
    log.open(run="aside")
    units = (
        MEASURES["renyi"].cost_table(Gaussian(4.0), CLIP, LEVELS, orders).astype("<i8").tobytes()
    )
    assert told(log.step(0, units, members=len(users)), "halted") == []
    norms = np.where(np.arange(140) < 80, 1.0, 0.5)
    assert not isinstance(log.charge(0, users, norms, run="aside"), Rejected)
    assert told(log.step(1, members=len(users)), "halted") == []
    again = rebuilt(log.changes)
    again.chain = log.ledger.chain
    spent = log.spent()
    log.hand_over(again)
    assert log.spent() == spent
    assert len({tuple(units) for units in spent.values()}) == 2


@pytest.mark.usefixtures("short_pages")
@pytest.mark.parametrize("deleted", [[0, 1], [1]])
def test_roster_closed_during_a_merge_stays_closed(deleted):
    """Some of its pages were deleted, and neither its entry nor the others: changes say it."""
    users = list(range(3 * columns.PAGE_ROWS))
    log = begun(users)
    pages = {name: log.ledger.state.take_page(name) for name in log.ledger.state.unmerged()}
    log.ledger.state.take_delta()
    log.step(0, prices(), members=len(users))
    log.close()
    for number in deleted:
        assert log.ledger.state.take_page(f"members:d/r/{number}") is None
        del pages[f"members:d/r/{number}"]
    kept = SimpleNamespace(pages=pages, changes=log.changes[-2:])
    again = ledger_of(kept, 0, 1, NO_TOPIC, log.ledger.chain)
    assert ("d", "r") not in again.state.rosters
    left = {number for number in range(3) if number not in deleted}
    assert {number for _, number in again.state.rosters.dropped} >= left
    log.hand_over(again)
    log.audit()
