"""A decision is explained as the client received it, from the log alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streams import CollectTerms, Turnstile
from streams.failures import Exit
from streams.records import HALT_REASONS, halt_reason
from streams.records.decision_ids import DecisionId
from streams.replay.archive import Archive
from streams.replay.decision_explanation import DecidedUser, NoDecision, explain_decision
from streams.replay.file import FileArchive
from streams.sdk.decisions import StepDecision, refusing_budget
from streams.sdk.roster_steps import RosterStep
from tests.integration.command import turnstile as command
from tests.unit.replay.cli import command_on
from tests.unit.replay.service import Archived, new_service

USERS = list(range(12))
NORMS = np.linspace(0.0, 2.0, len(USERS))


def rows_of(archive: Archive, decision: StepDecision | RosterStep) -> dict[Any, DecidedUser]:
    """Return what is explained of all partitions' decisions, by user."""
    rows: dict[Any, DecidedUser] = {}
    for text in decision.decision_ids:
        explained = explain_decision(archive, DecisionId.of(text))
        assert explained.charge.step == decision.step
        assert str(explained.decision) == text
        more = {row.user: row for row in explained.users}
        assert len(more) == len(explained.users)
        assert not rows.keys() & more.keys()
        rows |= more
    return rows


def check(
    archive: Archive, decision: StepDecision, users: Any, norms: Any, budgets: list[str]
) -> None:
    """Compare an explanation with the decision that the client has received."""
    rows = rows_of(archive, decision)
    assert rows.keys() == set(users)
    for at, (user, norm) in enumerate(zip(users, norms, strict=True)):
        row, granted = rows[user], float(decision.granted[at])
        assert (row.norm, row.granted) == (norm, granted)
        assert row.exhausted == decision.exhausted[at]
        assert (row.what == "halted") == decision.halted[at]
        if row.what == "halted":
            reason = int(decision.reasons[at])
            assert row.reason == halt_reason(reason)
            assert row.refused_by == refusing_budget(reason, budgets)
        else:
            assert (row.what == "clipped") == (granted < norm)
            assert (row.reason, row.refused_by) == (None, None)


@pytest.mark.parametrize("policy", [{}, {"on_exhaustion": "clip"}], ids=["halt", "clip"])
def test_charges_are_explained_as_they_were_decided(policy: dict[str, Any]) -> None:
    archived, turnstile = new_service(2)
    turnstile.create_dataset("person", measure="zcdp", budget=0.4, user_ids="integer")
    terms = {"measure": "zcdp", "budget": 0.5, "parents": "person", "user_ids": "integer"}
    turnstile.create_dataset("d", **terms, **policy)
    run = turnstile.run("d", "r", min_separation=2)
    decisions = [run.charge(USERS, NORMS, noise_stddev=2.0) for _ in range(6)]
    reasons = {row.reason for each in decisions for row in rows_of(archived, each).values()}
    assert reasons == {None, "budget", "too-soon"}
    for decision in decisions:
        check(archived, decision, USERS, NORMS.tolist(), ["d", "person"])


def test_collected_norms_are_explained_as_they_were_decided() -> None:
    archived, turnstile = new_service(2)
    turnstile.create_dataset("d", measure="zcdp", budget=0.5, user_ids="integer")
    run = turnstile.run("d", "r", collect=CollectTerms(clip_norm=2.0))
    sent = dict(zip(USERS, NORMS.tolist(), strict=True))
    for step in range(4):
        turnstile.send_norms("d", "r", step, USERS, NORMS)
        decision = run.charge_collected(noise_stddev=2.0)
        norms = [sent[user] for user in decision.users]  # type: ignore[index]
        check(archived, decision, decision.users, norms, ["d"])
    assert not decision.admitted.all()


def test_roster_steps_are_explained_as_they_were_decided() -> None:
    archived, turnstile = new_service(2)
    turnstile.create_dataset("person", measure="zcdp", budget=0.6, user_ids="integer")
    turnstile.create_dataset(
        "d", measure="zcdp", budget=0.5, parents="person", user_ids="integer", on_exhaustion="clip"
    )
    before = turnstile.run("person", "before")
    before.charge(USERS[:3], [2.0] * 3, noise_stddev=2.0)
    before.close()
    roster = turnstile.run("d", "r").enrol(USERS, clip_norm=2.0, levels=8)
    roster.set_norms(NORMS)
    norms = np.ceil(NORMS * 4) / 4
    for step in range(6):
        if step == 3:
            norms[-2:] = [0.0, 0.25]
            roster.set_norms([0.0, 0.25], USERS[-2:])
        decided = roster.charge(noise_stddev=2.0)
        admitted, exhausted = decided.admitted, decided.exhausted
        rows = rows_of(archived, decided)
        assert rows.keys() == set(USERS)
        for user, row in rows.items():
            assert (row.what != "halted") == admitted[user]
            assert row.exhausted == exhausted[user]
            assert (row.norm, row.granted) == (norms[user], decided.clip_norms[user])
            if not admitted[user]:
                assert row.reason == "budget"
                assert row.refused_by == ("person" if user in USERS[:3] else "d")
    assert 0 < np.count_nonzero(admitted) < len(USERS)


def test_erased_user_is_explained_without_the_id() -> None:
    archived, turnstile = new_service(1)
    turnstile.create_dataset("d", measure="zcdp", budget=0.5, user_ids="string")
    run = turnstile.run("d", "r")
    before = run.charge(["ada", "bob"], [1.0, 1.0], noise_stddev=4.0)
    turnstile.erase("ada", "d")
    after = run.charge(["ada", "bob"], [1.0, 1.0], noise_stddev=4.0)
    run.close()
    roster = turnstile.run("d", "s").enrol(["ada", "bob"], clip_norm=1.0)
    assert set(rows_of(archived, before)) == {"ada", "bob"}
    for decision in (after, roster.charge(noise_stddev=4.0)):
        rows = rows_of(archived, decision)
        assert set(rows) == {"erased:s:", "bob"}
        assert (rows["erased:s:"].what, rows["erased:s:"].reason) == ("halted", "erased")
    assert "erased" in {reason.name for reason in HALT_REASONS.values()}


@pytest.fixture
def decided() -> tuple[Archived, DecisionId]:
    """Return a service, and the id of its only decision."""
    archived, turnstile = new_service(1)
    turnstile.create_dataset("d", measure="zcdp", budget=0.5, user_ids="integer")
    run = turnstile.run("d", "r")
    (text,) = run.charge([7, 8], [1.0, 9.0], noise_stddev=4.0).decision_ids
    return archived, DecisionId.of(text)


def test_only_decisions_of_this_log_are_explained(decided: tuple[Archived, DecisionId]) -> None:
    archived, decision = decided
    charge = archived.topics["norms", 0][decision.offset].value
    archived.apply(0, charge)  # sent again: it repeats the decision
    archived.apply(0, b"garbage")
    wrong = msgspec.msgpack.decode(charge or b"") | {"step": 7}
    archived.apply(0, msgspec.msgpack.encode(wrong))
    again = decision.offset + 1
    for other, hint in (
        (decision._replace(log=bytes(16)), archived.topic.hex()),
        (decision._replace(partition=1), "1 partitions"),
        (decision._replace(offset=0), "create-dataset"),
        (decision._replace(offset=again), str(decision)),
        (decision._replace(offset=again + 1), "malformed"),
        (decision._replace(offset=again + 2), "step-out-of-order"),
        (decision._replace(offset=again + 3), f"no record at offset {again + 3}"),
    ):
        with pytest.raises(NoDecision) as refused:
            explain_decision(archived, other)
        assert hint in str(refused.value)


def test_decision_before_a_trimmed_log_begins_is_not_explained(
    decided: tuple[Archived, DecisionId],
) -> None:
    archived, decision = decided
    archived.draw(0)
    archived.apply(0, b"garbage")
    archived.trim("norms", 0, decision.offset + 1)
    with pytest.raises(NoDecision):
        explain_decision(archived, decision)


def test_command_explains_a_decision_for_all_users_or_for_one(
    decided: tuple[Archived, DecisionId],
) -> None:
    archived, decision = decided
    done = command_on(archived, "explain", "--decision", str(decision), "--json")
    assert done.code == Exit.OK, done.said
    assert [(line["user"], line["what"], line["refused_by"]) for line in done.lines] == [
        (7, "charged", None),
        (8, "halted", "d"),
    ]
    for line in done.lines:
        assert line["type"] == "decided_user"
        assert line["decision"] == str(decision)
        assert (line["dataset"], line["run"], line["step"]) == ("d", "r", 0)
        assert line["compared"]["redis"] == decision.offset + 1
    one = command_on(archived, "explain", "--decision", str(decision), "--user", "8", "--json")
    assert one.lines == done.lines[1:]
    text = command_on(archived, "explain", "--decision", str(decision)).out
    assert all(word in text for word in ("charged", "halted", "budget of d"))


@pytest.mark.parametrize(
    "text", ["7", "", "0" * 32, "0" * 31 + "/0/1", "0" * 32 + "/0/01", "0" * 32 + "/-1/1", "A/0/1"]
)
def test_other_texts_are_no_ids(text: str) -> None:
    with pytest.raises(ValueError, match="LOG/PARTITION/OFFSET"):
        DecisionId.of(text)
    with pytest.raises(SystemExit):
        command_on(new_service(1)[0], "explain", f"--decision={text}")


def test_decision_in_a_budget_file_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "budgets.db"
    with Turnstile.open(path, partitions=2) as turnstile:
        turnstile.create_dataset("d", measure="zcdp", budget=0.5, user_ids="integer")
        decision = turnstile.run("d", "r").charge(USERS, NORMS, noise_stddev=2.0)
    archive = FileArchive(str(path), 10.0)
    check(archive, decision, USERS, NORMS.tolist(), ["d"])
    archive.close()
    text = decision.decision_ids[1]
    done = command("explain", "--budgets", str(path), "--decision", text, "--json")
    assert done.code == Exit.OK, done.said
    assert {line["decision"] for line in done.lines} == {text}
