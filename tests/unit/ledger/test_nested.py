"""Nested datasets: a charge fits every budget that counts, or is charged to none."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from accounting import Gaussian, PoissonGaussian
from accounting.measures import MEASURES
from streams.ledger.ledger import Ledger
from streams.records import MAX_BUDGETS, Erase, Reason, Rejected
from streams.records.users import UserIds
from tests.unit.ledger.ledgers import admitted, answer_of, exhausted, rebuilt
from tests.unit.ledger.roster_logs import CLIP, LEVELS, RosterLog, told

ORDERS = [1.5, 8.0]
DATASETS = {
    "person": {"measure": "zcdp", "budget": 0.2},
    "ads": {"measure": "renyi", "orders": ORDERS, "budget": [0.1, 0.5], "parents": ["person"]},
    "search": {
        "measure": "renyi",
        "orders": [1.5, 4.0, 32.0],
        "budget": [0.1, 0.2, 1.5],
        "per_user_order": True,
        "parents": ["person"],
    },
    "tuning": {"measure": "zcdp", "budget": 0.15, "parents": ["ads"]},
    "shop": {"measure": "gdp", "budget": 0.45},
    "both": {"measure": "zcdp", "budget": 0.18, "parents": ["ads", "search", "shop"]},
}
"""A charge to ``tuning`` draws on the budgets of ``ads`` and ``person``, too. One to ``both`` draws
on all budgets but that of ``tuning``."""
CLIPS = {"on_exhaustion": "clip"}
CLIPPING = {"search": CLIPS, "tuning": CLIPS, "both": CLIPS}
"""The same datasets, where the outermost clip, ``ads`` halts, and the others clip."""
RUNS = {"p": "person", "a": "ads", "s": "search", "t": "tuning", "u": "tuning"} | {
    "h": "shop",
    "b": "both",
}
ORDER = {"tuning": ["tuning", "ads", "person"], "both": ["both", "ads", "search", "shop", "person"]}
"""The budgets of a charge: own, parents, then theirs, each once."""
USERS = [0, 1, 5, "Zoë", 2**63 - 1, "5", -3, "x"]


def nested(clipping: bool = False, **outermost) -> RosterLog:
    """A log of these datasets, with a run of each."""
    log = RosterLog()
    if clipping:
        outermost |= {"on_exhaustion": "clip"}
    for name, policy in DATASETS.items():
        fields = policy if "parents" in policy else {**policy, "user_ids": "mixed", **outermost}
        log.create(name, **fields | (CLIPPING.get(name, {}) if clipping else {}))
    for run, dataset in RUNS.items():
        log.open(dataset, run)
    return log


def prices(dataset: str, scale: float, rate: float | None = None) -> bytes:
    """The cost tables of all budgets that count for a dataset, one after the other."""
    mechanism = Gaussian(scale) if rate is None else PoissonGaussian(scale, rate)
    packed = b""
    for name in ORDER.get(dataset, [dataset, *DATASETS[dataset].get("parents", [])]):
        policy = DATASETS[name]
        units = MEASURES[policy["measure"]].cost_table(
            mechanism, CLIP, LEVELS, policy.get("orders")
        )
        packed += units.astype("<i8").tobytes()
    return packed


def test_a_charge_draws_on_every_budget():
    log = RosterLog()
    log.create("person", budget=0.1)
    for name in ("ads", "search"):
        log.create(name, budget=0.08, parents=["person"])
        log.open(name)
    first = log.charge(0, [1, 2], [1.0, 0.5], dataset="ads", scale=3.0)  # rho 0.056
    assert admitted(first) == [True, True]
    assert first.budgets == ["ads", "person"]
    second = log.charge(0, [1, 2], [1.1, 0.5], dataset="search", scale=3.0)
    assert admitted(second) == [False, True]  # 0.067 fits the budget of search, not of the person
    assert (list(second.reasons), UserIds.unpack(second.halted).tolist()) == ([1], [1])
    third = log.charge(1, [1, 2], [1.0, 1.3], dataset="ads", scale=3.0)
    assert admitted(third) == [False, False]
    assert list(third.reasons) == [0, 0]
    spent = {name: log.spent(name) for name in ("ads", "search", "person")}
    assert all(list(users) == [1, 2] for users in spent.values())
    assert spent["person"] == {user: spent["ads"][user] + spent["search"][user] for user in (1, 2)}
    log.audit()


def test_who_has_nothing_left_of_an_outer_budget_is_exhausted():
    log = RosterLog()
    log.create("person", budget=0.5)
    log.create("ads", budget=0.8, parents=["person"])
    log.create("search", budget=0.8, parents=["person"])
    for name in ("ads", "search"):
        log.open(name)
    log.enrol([1, 2], dataset="search")
    assert exhausted(log.charge(0, [1], [1.0], scale=1.0, dataset="ads")) == [True]
    units = 2 * MEASURES["zcdp"].cost_table(Gaussian(4.0), CLIP, LEVELS).astype("<i8").tobytes()
    step = log.step(0, units, members=2, dataset="search", positions=[0, 1], levels=[0, 1])
    assert (told(step, "halted"), told(step, "exhausted")) == ([], [0])  # level 0 asks for nothing
    step = log.step(1, members=2, dataset="search", positions=[0], levels=[1])
    assert told(step, "halted") == [0]
    (halted,) = log.halts()
    assert (halted.budgets, list(halted.reasons)) == (["search", "person"], [1])
    assert UserIds.unpack(halted.users).tolist() == [1]
    log.audit()


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        (Reason.UNKNOWN_DATASET, {"parents": ["nobody"]}),
        (Reason.INVALID_POLICY, {"parents": ["new"]}),
        (Reason.INVALID_POLICY, {"parents": ["pure"], **CLIPS}),
        (Reason.INVALID_POLICY, {"parents": ["plain"], "user_ids": "string"}),
        (Reason.UNKNOWN_DATASET, {"parents": ["nobody", "plain"]}),
        (Reason.INVALID_POLICY, {"parents": ["plain", "plain"]}),
        (Reason.INVALID_POLICY, {"parents": ["pure", "depth1"]}),
        (Reason.INVALID_POLICY, {"parents": ["mixed", "plain"]}),
        (Reason.INVALID_POLICY, {"parents": ["plain", "pseudonyms"]}),
        (Reason.INVALID_POLICY, {"parents": ["depth1", "pure"], **CLIPS}),
        (Reason.INVALID_POLICY, {"parents": [f"depth{MAX_BUDGETS}"]}),
        (Reason.INVALID_POLICY, {"parents": [f"depth{MAX_BUDGETS - 1}", "pure"]}),
        (Reason.MALFORMED, {"parents": ["not a name"]}),
        (Reason.MALFORMED, {"parents": []}),
        (Reason.MALFORMED, {"parents": list("abcdefgh")}),
        (Reason.MALFORMED, {"parents": None}),
    ],
)
def test_what_cannot_be_within_another_is_refused_and_changes_nothing(reason, fields):
    log = RosterLog()
    log.create("plain", user_ids="integer")
    log.create("pure", measure="pure-dp")
    log.create("mixed", user_ids="mixed")
    log.create("pseudonyms", user_ids="integer", pseudonyms="0" * 16)
    log.create("depth1")
    for depth in range(2, MAX_BUDGETS + 1):
        log.create(f"depth{depth}", parents=[f"depth{depth - 1}"])
    before = dict(log.ledger.state.policies)
    answer = log.create("new", **fields)
    assert isinstance(answer, Rejected)
    assert answer.reason is reason
    assert dict(log.ledger.state.policies) == before
    log.audit()


def test_a_dataset_has_the_kinds_of_ids_of_those_it_is_within():
    log = RosterLog()
    log.create("person", user_ids="integer")
    assert log.create("ads", parents=["person"]).policy.user_ids == "integer"
    assert log.create("ads", parents=["person"], user_ids="integer").policy.user_ids == "integer"
    log.open("ads")
    assert log.charge(0, ["x"], [1.0], dataset="ads").reason is Reason.MIXED_USERS
    log.audit()


def test_one_kind_of_ids_is_that_of_whoever_came_first_to_any_dataset():
    log = RosterLog()
    log.create("person")
    for name in ("ads", "search"):
        log.create(name, parents=["person"])
        log.open(name)
    log.charge(0, [1], [1.0], dataset="ads")
    assert log.charge(0, ["1"], [1.0], dataset="search").reason is Reason.MIXED_USERS
    assert log.enrol(["1"], dataset="search").reason is Reason.MIXED_USERS
    log.audit()


def test_what_a_dataset_is_within_never_changes():
    log = nested()
    for change in ({"parents": ["search"]}, {"parents": UNSET}, {"budget": 0.2}):
        fields = {**DATASETS["tuning"], **change}
        assert log.create("tuning", **fields).reason is Reason.POLICY_CHANGED
    assert log.create("tuning", **DATASETS["tuning"]).policy.parents == ["ads"]
    log.audit()


def test_an_outer_dataset_is_withdrawn_after_those_within_it():
    log = RosterLog()
    log.create("person")
    log.create("ads", parents=["person"])
    assert log.withdraw("person").reason is Reason.DATASET_IN_USE
    assert log.withdraw("ads").dataset == "ads"
    assert log.withdraw("person").dataset == "person"
    log.audit()


def test_whoever_opens_a_run_is_told_of_all_budgets():
    log = nested()
    opened = log.open("tuning", "t", attempt=2, request="other")
    assert [policy.dataset for policy in opened.outer] == ORDER["tuning"][1:]
    joined = log.open("both", "b", attempt=2, request="other")
    assert [policy.dataset for policy in joined.outer] == ORDER["both"][1:]
    assert opened.outer[0] == log.ledger.state.datasets["ads"].policy
    assert log.open("person", "p", attempt=2, request="other").outer is UNSET


@pytest.mark.parametrize(
    ("measure", "mechanism", "reason"),
    [
        ("pure-dp", "gaussian", Reason.INVALID_MECHANISM),
        ("gdp", "laplace", Reason.INVALID_MECHANISM),
        ("zcdp", "pure-dp", None),
        ("pure-dp", "laplace", None),
    ],
)
def test_every_budget_has_to_be_able_to_charge_the_mechanism(measure, mechanism, reason):
    log = RosterLog()
    log.create("person", measure=measure)
    log.create("ads", parents=["person"])
    log.open("ads")
    answer = log.charge(0, [1], [0.1], dataset="ads", mechanism=mechanism)
    assert getattr(answer, "reason", None) == reason
    log.audit()


@pytest.mark.parametrize("cut", [8, -8])
def test_cost_tables_of_too_few_or_too_many_budgets_are_refused(cut):
    log = nested()
    log.enrol([1], dataset="ads", run="a")
    units = prices("ads", 4.0)
    wrong = units + bytes(cut) if cut > 0 else units[:cut]
    step = {"dataset": "ads", "run": "a", "members": 1}
    assert log.step(0, wrong, **step).reason is Reason.INVALID_COST_TABLE
    assert told(log.step(0, units, **step), "halted") == []
    log.audit()


RUN = st.sampled_from(list(RUNS))
LEVEL = st.integers(0, LEVELS)
OPERATIONS = st.one_of(
    st.tuples(st.just("enrol"), RUN, st.integers(0, 8)),
    st.tuples(
        st.just("step"),
        RUN,
        st.sampled_from([1.5, 3.0, 4.0, 17.5, None]),  # noise; as it was
        st.dictionaries(st.integers(0, 7), LEVEL, max_size=4),
    ),
    st.tuples(st.just("charge"), RUN, st.lists(st.sampled_from(USERS), unique=True), st.floats(0)),
    st.tuples(st.just("again"), RUN, st.integers(1, 5)),
    st.tuples(st.just("close"), st.sampled_from("uut")),
    st.tuples(st.just("compact"), RUN),
    st.tuples(st.just("erase"), RUN, st.sampled_from(USERS)),
)


class Scenario:
    """Whatever happens to the runs of all these datasets; most of it is applied."""

    def __init__(self, clipping: bool) -> None:
        self.log = nested(clipping)
        self.pages: dict[str, bytes] = {}
        for run, dataset in RUNS.items():
            self.log.enrol(USERS[2:5], dataset=dataset, run=run)

    def happen(self, kind: str, run: str, *what) -> None:
        """One of ``OPERATIONS``."""
        log, dataset = self.log, RUNS[run]
        state = log.ledger.state.runs[dataset, run]
        count = len(log.ledger.state.rosters.members.get((dataset, run), ()))
        about = {"dataset": dataset, "run": run, "attempt": state.attempt}
        match kind, *what:
            case "enrol", users:
                log.enrol(USERS[2:][:users], **about)
            case "step", scale, moved:
                moved = {row: level for row, level in sorted(moved.items()) if row < count}
                units = b"" if scale is None else prices(dataset, scale)
                about |= {"positions": list(moved), "levels": list(moved.values())}
                log.step(state.step + 1, units, members=count, **about)
            case "charge", users, norm:
                norms = [min(norm, 2.0 + position) for position, _ in enumerate(users)]
                log.charge(state.step + 1, users, norms, **about)
            case "again", back:
                log.send(log.records[-min(back, len(log.records))])
            case ("erase", user):
                log.send(Erase(request="f", user=user, dataset=dataset))
            case ("close",):
                log.close(**about)
            case ("compact",):
                self.hand_over()

    def hand_over(self) -> None:
        """All pages are written, and another owner goes on from them."""
        for name in self.log.ledger.state.unmerged():
            page = self.log.ledger.state.take_page(name)
            if page is None:
                self.pages.pop(name, None)
            else:
                self.pages[name] = page
        again = Ledger(0, 1)
        again.state.load(self.pages)
        self.log.hand_over(again)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(OPERATIONS, max_size=16), st.booleans())
def test_auditor_agrees_about_nested_datasets(happenings, clipping):
    scenario = Scenario(clipping)
    for happening in happenings:
        scenario.happen(*happening)
    scenario.log.audit()


@settings(deadline=None)
@given(st.lists(OPERATIONS, min_size=1, max_size=8), st.data())
def test_a_new_owner_goes_on_as_the_old_one_would(happenings, data):
    """From changes alone, wherever the old one has stopped."""
    scenario = Scenario(data.draw(st.booleans()))
    for happening in happenings:
        scenario.happen(*happening)
        if data.draw(st.booleans()):
            scenario.log.hand_over(rebuilt(scenario.log.changes))
    scenario.log.audit()


def test_members_of_nested_datasets_are_charged_as_steps_of_norms_would_be():
    """By roster, and one by one by their norms: the same who, the same spends."""
    users = list(range(40))
    levels = [1 + user % LEVELS for user in users]
    norms = np.array(levels) / LEVELS
    by_roster, by_norms = nested(user_ids="integer"), nested(user_ids="integer")
    by_roster.enrol(users, dataset="tuning", run="t")
    about = {"dataset": "tuning", "run": "t"}
    halted: set[int] = set()
    for step in range(12):
        if step == 4:  # others come between
            for log in (by_roster, by_norms):
                log.charge(0, users[:20], [1.0] * 20, dataset="search", run="s", scale=3.0)
        fields = {"levels": levels} if step == 0 else {}
        units = prices("tuning", 3.0) if step == 0 else b""
        told_of = by_roster.step(step, units, members=40, **fields, **about)
        decided = by_norms.charge(step, users, norms, scale=3.0, **about)
        halted = (halted | set(told(told_of, "halted"))) - set(told(told_of, "readmitted"))
        assert sorted(halted) == np.flatnonzero(~np.array(admitted(decided))).tolist()
        for dataset in DATASETS:
            assert by_roster.spent(dataset) == by_norms.spent(dataset)
    assert 0 < len(halted) < 40
    by_roster.audit()


@pytest.mark.parametrize("by_roster", [False, True])
def test_charges_settled_by_another_dataset_are_stored(by_roster):
    """It is collected in all budgets of their roster, also in those that are not charged now."""
    log = nested()
    for dataset, run in (("ads", "a"), ("search", "s")):
        log.enrol([1, 2, 3], dataset=dataset, run=run)
    about = {"members": 3, "dataset": "ads", "run": "a"}
    assert told(log.step(0, prices("ads", 17.5), **about), "halted") == []
    assert told(log.step(1, **about), "halted") == []  # of which nobody is charged yet
    if by_roster:
        log.step(0, prices("search", 17.5), members=3, dataset="search", run="s")
    else:
        log.charge(0, [1, 3], [0.5, 0.5], dataset="search", run="s")
    log.hand_over(rebuilt(log.changes))
    log.audit()


def test_an_explicit_step_that_comes_again_is_answered_as_it_was():
    log = nested()
    first = log.charge(0, [1], [1.0], dataset="tuning", run="t", scale=1.0)
    assert answer_of(log.send(log.records[-1])) == first
    assert first.reasons == b"\0"
    log.audit()
