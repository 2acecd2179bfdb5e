"""Runs with a minimum separation: no user takes part again before it has passed.

The auditor looks on: it remembers the last participation of every user, and knows no places.
"""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from accounting import ZcdpFilter, banded_step
from accounting.exact.units import budget_units
from streams.ledger.ledger import Ledger
from streams.records import MAX_SEPARATION, TOO_SOON, Decision, Reason, RunOpened
from streams.records.users import UserIds
from tests.unit.ledger.ledgers import admitted, exhausted, halted_for, rebuilt
from tests.unit.ledger.roster_logs import RosterLog
from tests.unit.ledger.test_nested import DATASETS, nested
from tests.unit.ledger.test_rosters import Worker


def separated(separation: int = 3, **policy: Any) -> RosterLog:
    log = RosterLog()
    log.create(**policy)
    log.open(min_separation=separation)
    return log


def too_soon(decision: Decision) -> list[bool]:
    return halted_for(decision, TOO_SOON)


def test_participants_are_halted_uncharged_until_separation_passed():
    log = separated(3)
    first = log.charge(0, [1, 2, 3], [1.0, 0.0, 1.0])
    assert (admitted(first), too_soon(first)) == ([True] * 3, [False] * 3)
    spent = log.spent()
    for step in (1, 2):
        decision = log.charge(step, [3, 1], [1.0, 1e-300])
        assert (admitted(decision), too_soon(decision)) == ([False] * 2, [True] * 2)
        assert exhausted(decision) == [False] * 2
        assert UserIds.unpack(decision.halted).tolist() == [3, 1]
        assert log.spent() == spent
    assert admitted(log.charge(3, [1, 2, 3], [1.0, 1.0, 1.0])) == [True] * 3
    log.audit()


def test_who_is_exhausted_and_comes_too_soon_is_said_to_be_both():
    log = separated(2, budget=2**-5)
    log.charge(0, [1, 2], [1.0, 0.5])
    decision = log.charge(1, [1, 2], [1.0, 0.5])
    assert (too_soon(decision), exhausted(decision)) == ([True, True], [True, False])
    log.audit()


def test_other_runs_of_the_dataset_are_not_waited_for():
    log = separated(5)
    log.open(run="other", min_separation=2)
    log.open(run="plain")
    for run in ("r", "other", "plain"):
        assert admitted(log.charge(0, [1], [1.0], run=run)) == [True]
    assert admitted(log.charge(1, [1], [1.0], run="plain")) == [True]
    assert admitted(log.charge(1, [], [], run="other")) == []
    assert admitted(log.charge(2, [1], [1.0], run="other")) == [True]
    assert too_soon(log.charge(1, [1], [1.0])) == [True]
    log.audit()


def test_a_step_that_is_sent_again_is_the_same_and_keeps_nobody_longer():
    log = separated(2)
    log.charge(0, [1], [1.0])
    first = log.charge(1, [1, 2], [1.0, 1.0])
    log.open(attempt=0, request="later")
    again = log.charge(1, [1, 2], [1.0, 1.0], attempt=2)
    assert (again.admitted, again.reasons) == (first.admitted, first.reasons)
    assert admitted(log.charge(2, [1, 2], [1.0, 1.0], attempt=2)) == [True, False]
    log.audit()


def test_clipping_grants_norms_and_nothing_too_soon():
    """The norm of the column is in the noise: what is granted is what to clip to."""
    column = banded_step([2.0, 1.0, 2.0], 12.0)  # 12 / 3
    assert column.noise_stddev == 4.0
    log = separated(2, budget=2**-5 + 2**-7, on_exhaustion="clip")
    log.charge(0, [1, 2], [1.0, 0.5], column.noise_stddev)
    waits = log.charge(1, [1, 2], [1.0, 1.0], column.noise_stddev)
    assert (too_soon(waits), waits.clipped, exhausted(waits)) == ([True, True], b"", [False] * 2)
    left = log.charge(2, [1, 2], [1.0, 1.0], column.noise_stddev)
    granted = np.frombuffer(left.granted)
    assert granted.tolist() == [pytest.approx(0.5)]
    assert UserIds.unpack(left.halted).tolist() == []
    log.charge(3, [], [])
    nothing = log.charge(4, [1], [1.0], column.noise_stddev)
    assert (admitted(nothing), too_soon(nothing), exhausted(nothing)) == ([False], [False], [True])
    log.audit()


def test_too_soon_for_one_is_too_soon_for_all_budgets_that_count():
    log = nested()
    log.open("tuning", "separated", min_separation=2)
    about = {"dataset": "tuning", "run": "separated"}
    log.charge(0, [1, 5], [0.3, 1.0], **about)
    spent = {name: log.spent(name) for name in DATASETS}
    decision = log.charge(1, [5, 0, 1], [1.0, 40.0, 0.3], **about)
    assert decision.budgets == ["tuning", "ads", "person"]
    assert too_soon(decision) == [True, False, True]
    assert UserIds.unpack(decision.halted).tolist() == [5, 0, 1]
    assert list(decision.reasons) == [TOO_SOON, 0, TOO_SOON]
    assert {name: {u: n for u, n in log.spent(name).items() if u} for name in DATASETS} == spent
    log.audit()


OPENINGS = [
    # what was opened and charged before, how it is opened then, what the run keeps or the reason
    (3, False, 3, 3),
    (3, False, None, 3),
    (3, False, 4, 4),
    (None, False, 4, 4),
    (3, True, 3, 3),
    (3, True, None, 3),
    (3, True, 4, Reason.SEPARATION_CHANGED),
    (3, True, 2, Reason.SEPARATION_CHANGED),
    (None, True, 2, Reason.SEPARATION_CHANGED),
    (None, True, None, UNSET),
]


@pytest.mark.parametrize(("before", "charged", "asked", "expected"), OPENINGS)
def test_a_separation_is_fixed_with_the_first_step(before, charged, asked, expected):
    log = RosterLog()
    log.create()
    log.open(min_separation=before or UNSET)
    if charged:
        log.charge(0, [1], [1.0])
    opened = log.open(attempt=0, request="later", min_separation=asked or UNSET)
    if isinstance(expected, Reason):
        assert opened.reason is expected
        assert log.ledger.state.runs["d", "r"].attempt == 1
    else:
        assert isinstance(opened, RunOpened)
        assert opened.min_separation == expected
    log.audit()


def test_an_attempt_has_one_separation_and_a_run_with_a_roster_none():
    log = separated(3)
    log.charge(0, [], [])
    assert log.open(min_separation=4).reason is Reason.SEPARATION_CHANGED
    log.open(run="fresh", min_separation=3)
    assert log.open(run="fresh", min_separation=4).reason is Reason.SEPARATION_CHANGED
    assert log.open(run="fresh").min_separation == 3
    log.open(run="rostered")
    log.enrol([1], run="rostered")
    refused = log.open(run="rostered", attempt=2, min_separation=3)
    assert refused.reason is Reason.SEPARATION_CHANGED
    assert log.enrol([1], run="fresh").reason is Reason.NO_ROSTERS
    log.audit()


def test_nothing_is_kept_of_a_run_that_is_closed():
    log = separated(3)
    for step in range(4):
        log.charge(step, [step], [1.0])
    names = {"separation:d/r", "participants:d/r/0", "participants:d/r/1"}
    pages = {name: log.ledger.state.take_page(name) for name in log.ledger.state.unmerged()}
    assert {name for name in pages if name.startswith(("sep", "part"))} == {
        "partitions",
        *names,
    }
    log.close()
    assert {
        n for n in log.ledger.state.unmerged() if log.ledger.state.take_page(n) is None
    } == names
    assert not log.ledger.state.participants.must_wait(("d", "r"), np.arange(4)).any()
    log.audit()


@pytest.mark.slow
def test_at_most_one_participation_per_user_is_stored():
    log, users = separated(40), 100
    for step in range(200):
        log.charge(step, list(range(users)), np.ones(users), scale=1e6)
        entries = [value for (*_, _), value in log.ledger.state.participants.items()]
        assert sum(map(len, entries)) <= 4 * users
        assert len(entries) <= 39
    log.audit()


@given(
    separation=st.integers(2, 5),
    steps=st.lists(
        st.lists(st.sampled_from([None, 0.0, 0.25, 0.5, 1.0]), min_size=4, max_size=4), max_size=25
    ),
)
def test_it_is_the_budget_filter_for_users_who_are_not_too_soon(separation, steps):
    log = separated(separation, budget=0.1)
    rule = ZcdpFilter.from_units(budget_units(0.1))
    state, due = rule.initial_state(4), np.zeros(4)
    for step, norms in enumerate(steps):
        asked = [user for user, norm in enumerate(norms) if norm is not None]
        decision = log.charge(step, asked, [norms[user] for user in asked])
        given_norms = np.array([norm or 0.0 for norm in norms])
        waits = (given_norms > 0) & (due > step)
        state, fits = rule.admit_norms(
            state, banded_step([1.0], 4.0), np.where(waits, 0.0, given_norms)
        )
        due[fits & ~waits & (given_norms > 0)] = step + separation
        assert admitted(decision) == (fits & ~waits)[asked].tolist()
    spent = log.spent() if steps else {}
    assert [spent.get(user, 0) for user in range(4)] == state.tolist()
    log.audit()


POLICIES = {
    "zcdp": {"budget": 0.2},
    "clip": {"budget": 0.2, "on_exhaustion": "clip"},
    "clip within another": {
        "budget": 0.2,
        "on_exhaustion": "clip",
        "parents": ["outer"],
    },
    "renyi": {"measure": "renyi", "orders": [1.5, 8.0], "budget": [0.2, 1.0]},
    "per-user order": {
        "measure": "renyi",
        "orders": [1.5, 4.0, 32.0],
        "budget": [0.1, 0.3, 2.0],
        "per_user_order": True,
        "on_exhaustion": "clip",
    },
}
USERS = [0, 1, 2, 5, "Zoë", "5", -3, "x"]
RUN = st.sampled_from(["two", "three", "seven", "plain"])
OPERATIONS = st.one_of(
    *[
        st.tuples(
            st.just("charge"),
            RUN,
            st.lists(st.sampled_from(USERS), unique=True),
            st.sampled_from([0.0, 0.25, 1.0]),
        )
    ]
    * 4,
    st.tuples(st.just("again"), st.integers(1, 5)),
    st.tuples(st.just("open"), RUN, st.sampled_from([UNSET, UNSET, 2, 3])),
    st.tuples(st.just("close"), RUN, st.integers(0, 3)),
    st.tuples(st.just("enrol"), RUN),
)


def whatever_happens(policy: str, operations: list[tuple[Any, ...]]) -> RosterLog:
    """Runs of several separations over the same users."""
    log = RosterLog()
    if "parents" in POLICIES[policy]:
        log.create("outer", measure="gdp", budget=0.3, user_ids="mixed")
    log.create(user_ids="mixed", **POLICIES[policy])
    for run, separation in {"two": 2, "three": 3, "seven": 7, "plain": UNSET}.items():
        log.open(run=run, min_separation=separation)
    for kind, *what in operations:
        if kind == "again":
            log.send(log.records[-min(what[0], len(log.records))])
            continue
        run, *rest = what
        state = log.ledger.state.runs["d", run]
        about = {"run": run, "attempt": state.attempt}
        match kind, *rest:
            case "charge", users, norm:
                norms = [norm * (1 + number % 2) for number, _ in enumerate(users)]
                log.charge(state.step + 1, users, norms, **about)
            case "open", separation:
                token = f"{len(log.records)}"
                log.open(run=run, attempt=0, request=token, min_separation=separation)
            case "close", 0:
                log.close(**about)
            case ("enrol",):
                log.enrol([1, 2], **about)
    return log


@given(policy=st.sampled_from(list(POLICIES)), operations=st.lists(OPERATIONS, max_size=30))
def test_auditor_agrees_about_min_separation(policy, operations):
    whatever_happens(policy, operations).audit()


@pytest.mark.usefixtures("short_pages")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    policy=st.sampled_from(list(POLICIES)),
    operations=st.lists(OPERATIONS, max_size=40),
    rng=st.randoms(use_true_random=False),
)
def test_participations_survive_compactions_that_stop_anywhere(policy, operations, rng):
    log, worker = whatever_happens(policy, operations), Worker(rng)
    for offset, (record, outputs) in enumerate(zip(log.records, log.outputs, strict=True)):
        assert worker.ledger.apply(offset, record) == outputs
        worker.go_on()
    worker.finish()
    assert dict(worker.ledger.state.participants) == dict(log.ledger.state.participants)
    assert dict(worker.ledger.state.separations) == dict(log.ledger.state.separations)
    ledger = Ledger(0, 1)
    ledger.state.load(worker.pages)
    for run in log.ledger.state.separations:
        slots = np.arange(len(USERS))
        waiting = ledger.state.participants.must_wait(run, slots)
        assert (waiting == log.ledger.state.participants.must_wait(run, slots)).all()


@pytest.mark.parametrize("separation", [2, MAX_SEPARATION])
def test_the_widest_separation_is_kept_and_closed(separation):
    log, rng = separated(separation), Random(1)
    for step in range(20):
        log.charge(step, rng.sample(range(50), 5), np.full(5, 0.1), scale=100.0)
    log.hand_over(rebuilt(log.changes))
    decision = log.charge(20, list(range(50)), np.full(50, 0.1), scale=100.0)
    assert isinstance(decision, Decision)
    log.close()
    log.audit()
