"""One run at a time holds a budget, and shares of a budget add up to at most the budget."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from accounting.exact.units import budget_units
from streams.records import CloseDataset, Decision, Holder, Reason, Rejected, RunOpened
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import rebuilt

EXCLUSIVE = {"assume_independent_timing": UNSET}


def exclusive_log() -> AuditedLog:
    log = AuditedLog()
    log.create("d", budget=1.0, **EXCLUSIVE)
    log.create("inner", budget=1.0, parents=["d"])
    return log


def test_a_rejected_opening_names_the_holder_and_changes_nothing() -> None:
    log = exclusive_log()
    log.open(run="first")
    rejected = log.open(dataset="inner", run="second")
    assert isinstance(rejected, Rejected)
    assert rejected.reason is Reason.BUDGET_HELD
    assert rejected.holder == Holder(dataset="d", run="first")
    assert ("inner", "second") not in log.ledger.state.runs
    assert isinstance(log.charge(0, [1], [1.0], run="first"), Decision)
    log.audit()


def test_a_run_that_was_taken_over_is_not_even_told_its_last_decision() -> None:
    log = exclusive_log()
    log.open(run="first")
    log.charge(0, [1], [1.0], run="first")
    log.open(run="second", take_over=True)
    repeated = log.charge(0, [1], [1.0], run="first")
    assert (repeated.reason, repeated.holder) == (
        Reason.BUDGET_HELD,
        Holder(dataset="d", run="second"),
    )
    log.audit()


def test_a_repeated_opening_takes_nothing_over() -> None:
    """A copy of the record, sent again by its sender or by the network, arrives late."""
    log = exclusive_log()
    log.open(run="first", request="a", take_over=True)
    log.open(run="second", request="b", take_over=True)
    assert log.open(run="first", request="a", take_over=True).reason is Reason.BUDGET_HELD
    assert isinstance(log.charge(0, [1], [1.0], run="second"), Decision)
    newer = log.open(run="first", attempt=2, request="c", take_over=True)
    assert isinstance(newer, RunOpened)
    assert log.charge(1, [1], [1.0], run="second").reason is Reason.BUDGET_HELD
    log.audit()


def test_a_new_owner_of_the_partition_knows_the_holder() -> None:
    log = exclusive_log()
    log.open(run="first")
    log.hand_over(rebuilt(log.changes))
    assert log.open(run="second").reason is Reason.BUDGET_HELD
    log.close(run="first")
    log.hand_over(rebuilt(log.changes))
    assert isinstance(log.open(run="second"), RunOpened)
    log.audit()


def joint_log() -> AuditedLog:
    """A log of a dataset in two outermost ones, and of datasets in one of them each."""
    log = AuditedLog()
    for name in ("d", "else"):
        log.create(name, budget=1.0, **EXCLUSIVE)
        log.create(f"in-{name}", budget=1.0, parents=[name])
    log.create("joint", budget=1.0, parents=["d", "else"])
    return log


def holders(log: AuditedLog) -> dict[str, str]:
    return {name: held.dataset for (name,), held in log.ledger.state.holds.items()}


def test_a_run_holds_each_outermost_budget_or_none() -> None:
    log = joint_log()
    log.open("in-else")
    rejected = log.open("joint")
    assert (rejected.reason, rejected.holder) == (
        Reason.BUDGET_HELD,
        Holder(dataset="in-else", run="r"),
    )
    assert holders(log) == {"else": "in-else"}
    assert isinstance(log.open("in-d"), RunOpened)
    for name in ("in-d", "in-else"):
        log.close(name)
    assert isinstance(log.open("joint"), RunOpened)
    assert holders(log) == {"d": "joint", "else": "joint"}
    for name in ("in-d", "in-else"):
        assert log.open(name, "other").reason is Reason.BUDGET_HELD
    log.close("joint")
    assert holders(log) == {}
    log.audit()


def test_a_run_that_lost_one_of_its_budgets_charges_none() -> None:
    log = joint_log()
    log.open("joint")
    log.open("in-d", take_over=True)
    assert holders(log) == {"d": "in-d", "else": "joint"}
    rejected = log.charge(0, [1], [1.0], dataset="joint")
    assert (rejected.reason, rejected.holder) == (
        Reason.BUDGET_HELD,
        Holder(dataset="in-d", run="r"),
    )
    assert isinstance(log.open("joint", attempt=2, request="b", take_over=True), RunOpened)
    assert holders(log) == {"d": "joint", "else": "joint"}
    log.audit()


def test_an_outermost_dataset_switches_off_its_own_hold_only() -> None:
    log = AuditedLog()
    log.create("d", budget=1.0, **EXCLUSIVE)
    log.create("else", budget=1.0)
    log.create("joint", budget=1.0, parents=["d", "else"])
    log.open("joint")
    assert isinstance(log.open("else"), RunOpened)
    assert log.open("d").reason is Reason.BUDGET_HELD
    log.audit()


JOINS = [["d", "else"], ["else", "inner"], ["ads", "else"]]
NAMES = ["d", "inner", "ads", "search", "else", "joint"]
RUNS = st.tuples(st.sampled_from(NAMES), st.sampled_from("rs"))
OPERATIONS = st.one_of(
    st.tuples(st.just("open"), RUNS, st.booleans(), st.integers(0, 3)),
    st.tuples(st.just("charge"), RUNS, st.integers(1, 3)),
    st.tuples(st.just("close"), RUNS),
    st.tuples(st.just("share"), st.sampled_from(["ads", "search"]), st.sampled_from([1, 2, 4])),
    st.tuples(st.just("withdraw"), st.sampled_from(NAMES)),
    st.tuples(st.just("close-dataset"), st.sampled_from(NAMES)),
    st.tuples(st.just("join"), st.sampled_from(JOINS)),
    st.tuples(st.just("again"), st.integers(1, 6)),
    st.tuples(st.just("new owner")),
)


@settings(deadline=None)
@given(st.lists(OPERATIONS, max_size=24), st.booleans())
def test_ledger_and_auditor_agree_about_holds_and_shares(happenings, has_inner) -> None:
    log = AuditedLog()
    log.create("d", budget=1.0, **EXCLUSIVE)
    if has_inner:
        log.create("inner", budget=1.0, parents=["d"])
    log.create("else", budget=1.0, **EXCLUSIVE)
    for happening in happenings:
        match happening:
            case "join", parents:
                log.create("joint", budget=1.0, parents=parents)
            case "open", (dataset, run), take_over, token:
                fields = {"take_over": True} if take_over else {}
                log.open(dataset, run, attempt=0, request=f"{run}{token}", **fields)
            case "charge", (dataset, run), norm:
                state = log.ledger.state.runs.get((dataset, run))
                about = {"dataset": dataset, "run": run}
                if state is not None:
                    about["attempt"] = state.attempt
                log.charge(0 if state is None else state.step + 1, [1, 2], [norm, 1.0], **about)
            case "close", (dataset, run):
                state = log.ledger.state.runs.get((dataset, run))
                log.close(dataset, run, attempt=1 if state is None else state.attempt)
            case "share", name, parts:
                log.create(name, budget=1 / parts, share_of="d", **EXCLUSIVE)
            case "withdraw", name:
                log.withdraw(name)
            case "close-dataset", name:
                log.send(CloseDataset(dataset=name, request="c"))
            case "again", back:
                log.send(log.records[-min(back, len(log.records))])
            case _:
                log.hand_over(rebuilt(log.changes))
        budgets = [p.budget[0] for p in log.ledger.state.policies.values() if p.share_of == "d"]
        assert sum(budgets) <= budget_units(1.0)
    log.audit()
