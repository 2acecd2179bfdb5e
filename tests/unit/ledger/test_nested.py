"""Nested datasets: a charge fits every budget that counts, or is charged to none."""

import pytest
from msgspec import UNSET

from accounting import Gaussian, PoissonGaussian
from accounting.measures import MEASURES
from streams.records import MAX_BUDGETS, Reason, Rejected
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
def test_invalid_parent_is_rejected_and_changes_nothing(reason, fields):
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


def test_a_dataset_has_the_kinds_of_ids_of_those_it_is_within():
    log = RosterLog()
    log.create("person", user_ids="integer")
    assert log.create("ads", parents=["person"]).policy.user_ids == "integer"
    assert log.create("ads", parents=["person"], user_ids="integer").policy.user_ids == "integer"
    log.open("ads")
    assert log.charge(0, ["x"], [1.0], dataset="ads").reason is Reason.MIXED_USERS


def test_first_charge_decides_the_kind_of_ids_of_a_family():
    log = RosterLog()
    log.create("person")
    for name in ("ads", "search"):
        log.create(name, parents=["person"])
        log.open(name)
    log.charge(0, [1], [1.0], dataset="ads")
    assert log.charge(0, ["1"], [1.0], dataset="search").reason is Reason.MIXED_USERS
    assert log.enrol(["1"], dataset="search").reason is Reason.MIXED_USERS


def test_what_a_dataset_is_within_never_changes():
    log = nested()
    for change in ({"parents": ["search"]}, {"parents": UNSET}, {"budget": 0.2}):
        fields = {**DATASETS["tuning"], **change}
        assert log.create("tuning", **fields).reason is Reason.POLICY_CHANGED
    assert log.create("tuning", **DATASETS["tuning"]).policy.parents == ["ads"]


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


@pytest.mark.parametrize("cut", [8, -8])
def test_cost_tables_of_too_few_or_too_many_budgets_are_refused(cut):
    log = nested()
    log.enrol([1], dataset="ads", run="a")
    units = prices("ads", 4.0)
    wrong = units + bytes(cut) if cut > 0 else units[:cut]
    step = {"dataset": "ads", "run": "a", "members": 1}
    assert log.step(0, wrong, **step).reason is Reason.INVALID_COST_TABLE
    assert told(log.step(0, units, **step), "halted") == []
