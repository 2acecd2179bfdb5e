"""Explanations, reports and verification of collected steps say what those of named users say."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from streams import CollectTerms
from streams.ledger import parts
from streams.ledger.collecting import EventBlock
from streams.ledger.ledger import Delta
from streams.records import NormEvent, NormEvents, encode
from streams.records.packing import pack_norms
from streams.records.users import partitions_of
from streams.replay.explain import AccountEvent, explain
from streams.replay.findings import Check
from streams.replay.verify import verify
from streams.store.layout import pack_change
from tests.unit.replay.cli import command_on
from tests.unit.replay.service import Archived, new_service

USERS = np.arange(30)
OF_THE_LOG = {"time", "offset", "compared"}
"""The fields in which a log with more records differs."""


def norms_of(step: int) -> np.ndarray:
    return np.random.default_rng(step).random(len(USERS)) * (USERS % 3 > 0)


def charged(on_exhaustion: str, *, collects: bool) -> Archived:
    """A service whose steps are charged to users who sent norms, or to the same named users."""
    archived, turnstile = new_service()
    terms = {"user_ids": "integer", "on_exhaustion": on_exhaustion}
    turnstile.create_dataset("all", measure="zcdp", budget=0.2, user_ids="integer")
    turnstile.create_dataset("d", measure="zcdp", budget=0.1, parents="all", **terms)
    run = turnstile.run("d", "r", collect=CollectTerms(clip_norm=1.0) if collects else None)
    for step in range(5):
        norms = norms_of(step)
        if not collects:
            run.charge(USERS, norms, noise_stddev=2.0, clip_norm=1.0)
            continue
        turnstile.send_norms("d", "r", step, USERS, norms)
        turnstile.send_norms("d", "r", step, USERS[::2], np.minimum(1, 2 * norms[::2] + 0.1))
        for user in USERS[:3].tolist():  # alone, too, and again
            event = NormEvent(dataset="d", run="r", step=step, user=user, norm=float(norms[user]))
            home = int(partitions_of(USERS[user : user + 1], 2)[0])
            archived.apply(home, msgspec.json.encode(event))
            archived.apply(1 - home, encode(event))
        run.charge_collected(noise_stddev=2.0)
    return archived


@pytest.fixture(scope="module", params=["halt", "clip"])
def pair(request: pytest.FixtureRequest) -> tuple[Archived, Archived]:
    return charged(request.param, collects=True), charged(request.param, collects=False)


def events_of(archived: Archived, user: int) -> list[AccountEvent]:
    events = explain(archived, user, delta=1e-5).events
    return [replace(event, time=0.0, offset=0) for event in events]


@pytest.mark.slow
def test_an_account_is_explained_alike(pair: tuple[Archived, Archived]) -> None:
    explained = [[events_of(archived, user) for user in USERS.tolist()] for archived in pair]
    assert explained[0] == explained[1]
    assert {event.what for events in explained[0] for event in events} >= {"charged"}
    assert {event.what for events in explained[0] for event in events} & {"halted", "clipped"}


def test_the_commands_show_the_same(pair: tuple[Archived, Archived]) -> None:
    for command in (["explain", "--user", "7", "--delta", "1e-5"], ["report", "--delta", "1e-5"]):
        shown = [command_on(archived, *command, "--json") for archived in pair]
        assert [done.code for done in shown] == [0, 0]
        collected, named = (
            [{name: line[name] for name in line.keys() - OF_THE_LOG} for line in done.lines]
            for done in shown
        )
        assert collected == named != []
    for archived in pair:
        *_, summary = command_on(archived, "verify", "--json").lines
        assert (summary["fits"], summary["findings"]) == (True, 0)


def test_only_the_norm_that_counts_is_explained() -> None:
    archived, turnstile = new_service(1)
    turnstile.create_dataset("d", measure="zcdp", budget=0.1, user_ids="integer")
    run = turnstile.run("d", "r", collect=CollectTerms(clip_norm=1.0))
    turnstile.send_norms("d", "r", 1, [7], [0.75])
    turnstile.erase(7, dataset="d")  # who has no account
    records = (([7], []), ([7, 7], [-1.0, 0.25]), ([7], [0.5]))
    for users, norms in records:
        about = {"dataset": "d", "run": "r", "step": 1}
        archived.apply(0, encode(NormEvents(**about, users=users, norms=norms)))
    archived.apply(0, encode(NormEvent(dataset="d", run="r", step=3, user=7, norm=0.75)))
    for _ in range(3):
        run.charge_collected(noise_stddev=2.0)
    turnstile.send_norms("d", "r", 3, [7], [0.5])
    run.charge_collected(noise_stddev=2.0)
    steps = [(event.step, event.norm) for event in explain(archived, 7, delta=1e-5).events]
    assert steps == [(1, 0.25), (3, 0.5)]


@pytest.mark.parametrize(
    "lost", ["collecting:d/r", "collected:d/r/0/0", "collected:d/r/0/1", "another norm"]
)
def test_collected_norms_in_the_state_are_verified(lost: str) -> None:
    archived, turnstile = new_service(1)
    turnstile.create_dataset("d", measure="zcdp", budget=0.1, user_ids="integer")
    turnstile.run("d", "r", collect=CollectTerms(clip_norm=1.0))
    turnstile.send_norms("d", "r", 0, np.arange(1100), np.full(1100, 0.5))
    turnstile.erase(7, dataset="d")
    archived.apply(0, b"{")  # whose delta is empty, and replaced below
    assert verify(archived).fits
    kept = archived.kept[0]
    block = archived.ledgers[0].state.collected["d", "r", "0", "1"]
    forged = EventBlock(block.users, [0.25, *block.norms[1:]])
    is_lost = lost != "another norm"
    entry = {lost: encode(None)} if is_lost else {"collected:d/r/0/1": encode(forged)}
    delta = Delta({name: msgspec.Raw(packed) for name, packed in entry.items()}, [])
    kept.changes[-1:] = pack_change(kept.next - 1, kept.next, encode(delta))
    (finding,) = verify(archived).findings
    assert finding.check is Check.STATE


def test_norms_in_a_decision_are_verified() -> None:
    archived = charged("halt", collects=True)
    assert verify(archived).fits
    before, _ = archived.change("halts", "decision")
    lower = np.frombuffer(before["norms"], dtype="<f8") * 0.5
    archived.change("halts", "decision", norms=pack_norms(lower))
    (finding,) = verify(archived).findings
    assert finding.check is Check.HALTS


def test_a_decision_in_parts_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = charged("clip", collects=True)
    monkeypatch.setattr(parts, "MAX_PART_BYTES", 400)
    parted = charged("clip", collects=True)
    assert verify(parted).fits
    assert [events_of(parted, user) for user in (1, 2)] == [
        events_of(whole, user) for user in (1, 2)
    ]
    parted.drop("halts", "decision")
    (finding,) = verify(parted).findings
    assert finding.check is Check.HALTS
