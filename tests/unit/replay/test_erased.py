"""Explanation, report and verification after a user was erased."""

from __future__ import annotations

import pytest

from streams import Turnstile
from streams.ledger.erasure import ErasureKeys
from streams.ledger.ledger import ledger_of
from streams.replay.archive import UnreadableService
from streams.replay.explain import explain
from streams.replay.findings import Check
from streams.replay.report import report
from streams.replay.verify import verify
from tests.unit.replay.cli import command_on
from tests.unit.replay.service import Archived, used

USER = 7


@pytest.fixture
def archived() -> Archived:
    archived = used()
    turnstile = Turnstile(connection=archived)
    assert turnstile.erase(USER) == ["d", "faces", "inner"]
    later = turnstile.run("d", "later", take_over=True)
    later.charge([USER, 8], [0.0, 0.1], noise_stddev=4.0)
    return archived


def home(archived: Archived) -> int:
    return next(p for p, ledger in enumerate(archived.ledgers) if ledger.state.erased)


def test_service_with_an_erased_user_fits(archived: Archived) -> None:
    result = verify(archived)
    assert result.findings == []
    assert result.fits


def test_odometer_record_after_the_tombstone_is_found(archived: Archived) -> None:
    place = "odometer", home(archived)
    records = archived.topics[place]
    tombstone = next(record for record in records if record.value is None)
    before = [r for r in records if r.key == tombstone.key and r.value is not None]
    records.append(before[-1]._replace(offset=records[-1].offset + 1))
    (finding,) = verify(archived).findings
    assert finding.check is Check.ODOMETER


def test_compaction_may_remove_tombstones(
    archived: Archived,
) -> None:
    place = "odometer", home(archived)
    gone = {record.key for record in archived.topics[place] if record.value is None}
    archived.topics[place] = [r for r in archived.topics[place] if r.key not in gone]
    assert verify(archived).fits


def test_explanation_shows_the_erasure(archived: Archived) -> None:
    events = list(explain(archived, USER, delta=1e-5).events)
    *_, erased, halted = events
    assert (erased.what, {s.dataset for s in erased.budgets}) == (
        "erased",
        {"d", "faces", "inner"},
    )
    assert (halted.what, halted.erased, halted.refused_by) == ("halted", True, None)
    assert halted.budgets[0].cost == [0.0]
    assert events[0].what in ("charged", "enrolled")
    done = command_on(archived, "explain", "--user", str(USER), "--json")
    assert [line["what"] for line in done.lines][-2:] == ["erased", "halted"]


@pytest.mark.slow
def test_report_has_no_row_of_the_erased_user(archived: Archived) -> None:
    losses = report(archived, delta=1e-5).losses
    assert all(USER not in part.users for part in losses)
    assert sum(part.erased for part in losses) == 3
    assert all(len(part.users) == len(part.steps) == len(part.epsilon) for part in losses)


KEY, NEWER = "k" * 16, "n" * 16


def restart(archived: Archived, keys: str) -> None:
    """Restore all ledgers from what is stored, with these erasure keys."""
    archived.erasure_keys = keys
    for partition, ledger in enumerate(archived.ledgers):
        stored, count = archived.load(partition), archived.partitions
        assert stored is not None
        place = partition, count, archived.topic
        archived.ledgers[partition] = ledger_of(stored, *place, ledger.chain, keys)


def erased_twice(archived: Archived) -> None:
    """Erase two users, the second one after a newer key was put before the first one."""
    turnstile = Turnstile(connection=archived)
    turnstile.erase(USER)
    restart(archived, f"{NEWER} {KEY}")
    assert turnstile.erase(8)
    turnstile.run("d", "later", take_over=True).charge([USER, 8], [0.1, 0.1], noise_stddev=4.0)


def test_service_fits_after_its_erasure_key_was_rotated() -> None:
    archived = used(1, erasure_keys=KEY)
    erased_twice(archived)
    assert archived.ledgers[0].state.erasure.keys() == {
        (ErasureKeys(key).newest,) for key in (KEY, NEWER)
    }
    for keys in (f"{NEWER} {KEY}", f"{KEY} {NEWER}"):
        archived.erasure_keys = keys
        assert verify(archived).findings == []


def test_verification_without_a_key_of_the_state_is_refused() -> None:
    archived = used(1, erasure_keys=KEY)
    erased_twice(archived)
    archived.erasure_keys = NEWER
    with pytest.raises(UnreadableService, match=ErasureKeys(KEY).newest):
        verify(archived)


@pytest.mark.parametrize("keys", [KEY, f"{NEWER} {KEY}"])
def test_another_erased_user_is_found(keys: str) -> None:
    archived = used(1, erasure_keys=KEY)
    Turnstile(connection=archived).erase(USER)
    kept = archived.ledgers[0].state
    (dataset, slot), name = next(iter(kept.erased.items()))
    del kept.erased[dataset, slot]
    kept.erased[dataset, str(int(slot) + 1)] = name
    archived.apply(0, None)
    restart(archived, keys)
    assert not verify(archived).fits
