"""A user gets everything that happened to that user, and nothing about others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from accounting import Laplace
from accounting.exact.units import from_units
from streams import Turnstile
from streams.cli.loss_commands import NOT_CHARGED
from streams.operations.guarantees import ABOVE_BUDGET
from streams.records import User
from streams.replay.archive import UnreadableService
from streams.replay.explain import AccountEvent, explain
from tests.spending import spent_units
from tests.unit.answerer.published import answer, correction, moment
from tests.unit.replay.cli import command_on
from tests.unit.replay.service import Archived, new_service, used


def events_of(archived: Archived, user: User, **options: Any) -> list[AccountEvent]:
    return list(explain(archived, user, **{"delta": 1e-5, **options}).events)


@pytest.fixture(scope="module")
def archived() -> Archived:
    return used()


@pytest.mark.parametrize("user", [0, 1, 17, 39])
def test_explained_costs_add_up_to_the_spending(archived: Archived, user: int) -> None:
    events = events_of(archived, user)
    for name in ("d", "faces", "inner"):
        ledger = next(
            ledger
            for ledger in archived.ledgers
            if user in spent_units(ledger.state.datasets[name])[0]
        )
        users, units = spent_units(ledger.state.datasets[name])
        spent = units.reshape(len(users), -1)[list(users).index(user)]
        shares = [s for event in events for s in event.budgets if s.dataset == name]
        power = 2 if name == "inner" else 1
        measure = ledger.state.datasets[name].policy.row
        assert shares[-1].spent == measure.stated(spent).tolist()
        added = sum(share.cost[0] ** power for share in shares)
        assert added == pytest.approx(float(from_units(spent)[0]), rel=1e-12)


def test_every_halt_is_explained(archived: Archived) -> None:
    events = events_of(archived, 39)
    halted = [(event.run, event.step) for event in events if event.what == "halted"]
    admitted = [(event.run, event.step) for event in events if event.what == "charged"]
    assert halted == [("r", 2), ("r", 3), *(("s", step) for step in range(6)), *TOO_MUCH]
    assert admitted == [("r", 0), ("r", 1)]
    by = {event.run: event.refused_by for event in events if event.what == "halted"}
    assert by == {"r": "d", "s": "faces", "n": "d"}
    for event in events:
        if event.what == "halted":
            share = next(s for s in event.budgets if s.dataset == event.refused_by)
            assert share.asked[share.tightest] > share.left[share.tightest]
            assert not any(number for one in event.budgets for number in one.cost)


TOO_MUCH = [("n", step) for step in range(5)]
"""By the budget around it: 0.95 of 1 was spent there, and a step costs 1 / 18."""


def test_clipped_norm_is_explained() -> None:
    archived, turnstile = new_service(1)
    turnstile.create_dataset("c", measure="zcdp", budget=0.5, on_exhaustion="clip")
    run = turnstile.run("c", "r")
    for _ in range(3):
        run.charge([7], [3.0], noise_stddev=4.0)
    charged, clipped, halted = events_of(archived, 7)
    assert (charged.what, clipped.what, halted.what) == ("charged", "clipped", "halted")
    assert 0 < clipped.granted < clipped.norm == 3.0
    assert clipped.exhausted
    assert clipped.budgets[0].left == [0.0]


def test_norm_clipped_by_the_parent_budget_is_explained() -> None:
    archived, turnstile = new_service(1)
    turnstile.create_dataset("person", measure="zcdp", budget=0.125)
    turnstile.create_dataset(
        "d", measure="zcdp", budget=0.5, parents="person", on_exhaustion="clip"
    )
    run = turnstile.run("d", "r")
    for _ in range(2):
        run.charge([7], [3.0], noise_stddev=4.0)
    clipped, halted = events_of(archived, 7)
    assert (clipped.what, halted.what) == ("clipped", "halted")
    assert clipped.granted == pytest.approx(2.0)
    own, person = clipped.budgets
    assert (own.cost, person.cost) == ([0.125], [0.125])
    assert (own.left, person.left) == ([0.375], [0.0])
    assert [share.cost for share in halted.budgets] == [[0.0], [0.0]]
    assert halted.refused_by == "person"
    roster = turnstile.run("d", "s", take_over=True).enrol([8], clip_norm=4.0, levels=8)
    for _ in range(2):
        roster.charge(noise_stddev=4.0)
    _, first, second = events_of(archived, 8)
    assert (first.what, first.granted, second.what) == ("clipped", 2.0, "halted")
    assert second.refused_by == "person"


def test_repeated_step_is_explained_once() -> None:
    archived, turnstile = new_service(1)
    turnstile.create_dataset("d", measure="zcdp", budget=0.5)
    run = turnstile.run("d", "r")
    run.charge([7], [1.0], noise_stddev=4.0)
    again = turnstile.run("d", "r", released=-1)
    again.charge([7], [1.0], noise_stddev=4.0)
    assert [event.step for event in events_of(archived, 7)] == [0]


def mixed(others: list[User], norms: list[float]) -> Archived:
    """Steps of user 7 among others."""
    archived, turnstile = new_service(1)
    turnstile.create_dataset("d", measure="zcdp", budget=0.2, user_ids="mixed")
    run = turnstile.run("d", "r")
    for _ in range(4):
        run.charge([*others, 7], [*norms, 1.5], noise_stddev=4.0)
    roster = turnstile.run("d", "s", take_over=True).enrol([7, *others], clip_norm=1.0, levels=4)
    for step in range(4):
        roster.charge(noise_stddev=8.0)
        roster.set_norms([norms[0] / 4], positions=[1 + step % 2])
    return archived


def test_explanation_contains_no_other_user() -> None:
    """With other people, of other norms, of whom others are halted, it is the same to the byte."""
    outputs = []
    for others, norms in (([1, 2, 3], [0.1, 0.2, 0.3]), ([400, "anna", -5], [3.0, 2.9, 2.8])):
        archived = mixed(others, norms)
        done = [command_on(archived, "explain", "--user", "7", *form) for form in FORMS]
        assert [one.code for one in done] == [0, 0]
        outputs.append([one.out for one in done])
        assert "anna" not in "".join(outputs[-1])
    assert outputs[0] == outputs[1]


FORMS = ((), ("--json",))


@pytest.mark.slow
def test_unknown_user_gets_the_answer_of_an_uncharged_one() -> None:
    archived = mixed([1, 2, 3], [0.1, 0.2, 0.3])
    asked = (
        ("--user", "99"),
        ("--user", "unknown"),
        ("--user", "99", "d"),
        ("--user", "7", "unknown"),
        ("--user", "99999999999999999999999"),
    )
    no_service = {"TURNSTILE_KAFKA": "127.0.0.1:1", "TURNSTILE_TIMEOUT": "0.1"}
    for form in FORMS:
        answers = {
            (done.code, done.out, done.said)
            for one in asked
            for done in [command_on(archived, "explain", *one, *form, **no_service)]
        }
        assert answers == {(0, "", f"{NOT_CHARGED}\n")}


def test_digits_mean_integer_and_string() -> None:
    archived = mixed(["7", "x"], [0.1, 0.2])
    lines = command_on(archived, "explain", "--user", "7", "--json").lines
    assert [line["user"] for line in lines if line["run"] == "r"] == ["7"] * 4 + [7] * 4
    shown = command_on(archived, "explain", "--user", "7").out
    assert "User 7 (string)" in shown
    assert "User 7 (integer)" in shown


def test_trimmed_log_without_snapshot_is_not_explained() -> None:
    archived = mixed([1, 2, 3], [0.1, 0.2, 0.3])
    archived.trim("norms", 0, 3)
    with pytest.raises(UnreadableService):
        events_of(archived, 7)
    assert command_on(archived, "explain", "--user", "7").code == 69


def test_trimmed_log_is_explained_from_its_snapshot() -> None:
    archived, turnstile = new_service(1)
    turnstile.create_dataset("d", measure="zcdp", budget=0.5)
    roster = turnstile.run("d", "s").enrol([7, 8], clip_norm=1.0, levels=4)
    for step in range(6):
        roster.charge(noise_stddev=4.0)
        if step == 2:
            archived.draw(0)
    whole = events_of(archived, 7)
    archived.trim("norms", 0, 4)
    earlier, *others = events_of(archived, 7)
    assert (earlier.what, earlier.dataset, earlier.offset) == ("earlier", "d", 7)
    assert others == whole[4:]
    assert earlier.budgets[0].spent == whole[3].budgets[0].spent
    shown = command_on(archived, "explain", "--user", "7").out
    assert "before offset 7" in shown
    assert events_of(archived, 9) == []


def test_user_with_a_pseudonym_is_shown_by_id() -> None:
    key = "a key that is hard to guess"
    archived = Archived(2)
    turnstile = Turnstile(connection=archived, pseudonym_key=key)
    turnstile.create_dataset("p", measure="zcdp", budget=1.0)
    turnstile.run("p", "r").charge(["anna", "bert"], [1.0, 0.5], noise_stddev=4.0)
    asked = ("explain", "--user", "anna", "--json")
    (line,) = command_on(archived, *asked, TURNSTILE_PSEUDONYM_KEY=key).lines
    assert (line["user"], line["norm"]) == ("anna", 1.0)
    assert command_on(archived, *asked).out == ""


def test_no_epsilon_is_shown_at_a_delta_that_was_not_given() -> None:
    archived, turnstile = new_service(1)
    turnstile.create_dataset("d", epsilon=1.0, delta=1e-7)
    turnstile.create_dataset("pure", measure="pure-dp", budget=1.0)
    for name, noise in (("d", {"noise_stddev": 9.0}), ("pure", {"mechanism": Laplace(4.0)})):
        turnstile.run(name, "r").charge([7], [1.0], **noise)
    asked = ("explain", "--user", "7")
    for at, shown in (((), False), (("--delta", "1e-7"), True)):
        lines = command_on(archived, *asked, "--json", *at).lines
        for budget in (share for line in lines for share in line["budgets"]):
            is_known = shown or budget["dataset"] == "pure"  # pure DP needs no delta
            assert (budget["epsilon"] is not None) == is_known
            assert (budget["budget_epsilon"] is not None) == is_known
            assert budget["spent"][0] > 0.0
        assert ("1e-07" in command_on(archived, *asked, *at).out) == shown
        assert "1e-05" not in command_on(archived, *asked, *at).out


def test_steps_of_an_answerer_are_explained_with_their_query_and_window() -> None:
    archived, turnstile = new_service(1)
    turnstile.create_dataset("shop", measure="zcdp", budget=1.0)
    for name in ("r", "other"):
        run = turnstile.run("shop", name, take_over=True)
        for _ in range(3):
            run.charge([7], [1.0], noise_stddev=4.0)
    first, second = (answer(number, 1.0, query="buyers") for number in range(2))
    corrected = msgspec.structs.replace(correction([first, second], 1.0), step=2, query="buyers")
    archived.published = [first, second, corrected]
    events = events_of(archived, 7)
    assert [(event.query, event.start, event.end, event.is_correction) for event in events] == [
        ("buyers", moment(0), moment(1), False),
        ("buyers", moment(1), moment(2), False),
        ("buyers", moment(0), moment(2), True),
        *[(None, None, None, False)] * 3,
    ]
    shown = command_on(archived, "explain", "--user", "7").out
    assert "1 buyers 2026-01-02 " in shown
    assert "2 buyers 2026-01-01 corrected" in shown


def test_any_time_epsilon_above_that_of_the_budget_is_not_taken_for_overspending() -> None:
    archived, turnstile = new_service(1)
    turnstile.create_dataset("d", epsilon=1.0, delta=1e-6)
    run = turnstile.run("d", "r")
    for norm, is_above in ((0.1, False), (3.9, True)):
        run.charge([7], [norm], noise_stddev=17.0)
        share = events_of(archived, 7, delta=1e-6)[-1].budgets[0]
        assert share.epsilon is not None
        assert share.budget_epsilon is not None
        assert (share.epsilon > share.budget_epsilon) == is_above
        shown = command_on(archived, "explain", "--user", "7", "--delta", "1e-6").out
        assert (ABOVE_BUDGET in shown) == is_above
