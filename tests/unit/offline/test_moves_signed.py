"""A dataset that names principals moves with these names; whose they are, each log says itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streams import Turnstile
from streams.offline.explanation import explain
from streams.offline.mover import compare, move, plan
from streams.offline.moves import Unmovable
from streams.offline.report import report
from streams.offline.verification import verify
from streams.schemas import Allow, Reason
from streams.sdk.errors import RequestRejected
from streams.topics.topics import NORMS
from streams.wire.requests import RequestSigner
from streams.wire.signatures import public_text
from tests.keys import OPERATOR, private_key, public_key
from tests.unit.offline.service import Archived
from tests.unit.offline.test_moving import THERE, audited

USERS = np.arange(30)
NAMES = {"alice": False, "mary": True}
"""Whether each may create datasets."""


def known(archived: Archived, names: dict[str, bool], **keys: str) -> Archived:
    """A service whose operator knows these, by keys of their own or by others."""
    told = Turnstile(connection=archived)
    for name, creates in names.items():
        public = public_text(public_key(keys.get(name, name)))
        told.add_principal(name, public, creates=creates, operator_key=private_key(OPERATOR))
    return archived


def by(archived: Archived, name: str | None, key: str | None = None) -> Turnstile:
    """A client who signs so, and nobody else does on this connection."""
    archived.signer = None
    if name is None:
        return Turnstile(connection=archived)
    return Turnstile(connection=archived, principal=name, request_key=private_key(key or name))


def begun(**inner: Any) -> Archived:
    """Two datasets that alice has charged and mary manages, unless the inner one says otherwise."""
    archived = known(Archived(2), NAMES)
    mary = by(archived, "mary")
    mary.create_dataset("d", budget=1.0, allow={"charge": ["alice"], "manage": ["mary"]})
    mary.create_dataset("inner", budget=0.5, within="d", **inner)
    alice = by(archived, "alice")
    alice.run("d", "r").charge(USERS, np.linspace(0.0, 3.0, 30), noise_stddev=4.0)
    return archived


def spent(archived: Archived) -> list[dict[str, Any]]:
    """In each partition, by dataset and in the order of the users there."""
    return [
        {name: accounts.spent_units()[1].tolist() for name, accounts in ledger.datasets.items()}
        for ledger in archived.ledgers
    ]


def moved_by(name: str | None, old: Archived, new: Archived) -> None:
    by(old, name), by(new, name)
    move(old, new, old, new, "d")


def test_who_manages_it_moves_it_with_the_names_of_those_who_may_charge_it():
    old, new = begun(), known(Archived(3, THERE), NAMES, alice="alice, anew")
    moved_by("mary", old, new)
    compare(old, new, "d")
    for ledger in new.ledgers:
        assert ledger.policies["d",].allow == Allow(charge=["alice"], manage=["mary"])
    for name, key in ((None, None), ("mary", None), ("alice", "alice")):
        with pytest.raises(RequestRejected) as refused:
            by(new, name, key).run("d", "r")
        assert refused.value.reason is Reason.NOT_ALLOWED
    run = by(new, "alice", "alice, anew").run("d", "r")
    run.charge(USERS, np.linspace(0.0, 9.0, 30), noise_stddev=4.0)
    for archived in (old, new):
        audited(archived)
        assert verify(archived, archived).fits
    assert [*report(old, dataset="d", delta=1e-5).losses]
    assert [event.what for event in explain(new, 3, delta=1e-5).events] == ["earlier", "charged"]


def test_what_was_signed_for_one_log_does_not_count_in_the_other():
    old, new = begun(), known(Archived(2, THERE), NAMES)
    moved_by("mary", old, new)
    before = spent(new)
    for partition, ledger in enumerate(new.ledgers):
        runs = dict(ledger.runs)
        for record in old.topics[NORMS, partition]:
            new._apply(partition, record.value)
        assert dict(ledger.runs) == runs
        assert not ledger.closed
    assert spent(new) == before
    audited(new)


def test_a_log_of_both_that_was_trimmed_goes_on_from_its_checkpoint():
    old, new = begun(), known(Archived(3, THERE), NAMES)
    moved_by("mary", old, new)
    for archived in (old, new):
        for partition in range(archived.partitions):
            archived.draw(partition)
            archived.trim(NORMS, partition, archived.extent(NORMS, partition).end)
    by(new, "alice").run("d", "r").charge(USERS, np.full(30, 0.1), noise_stddev=4.0)
    for archived in (old, new):
        assert verify(archived, archived).fits
    by(old, "mary"), by(new, "mary")
    assert move(old, new, old, new, "d").sent == 0


@pytest.mark.parametrize(
    ("name", "inner", "names", "which"),
    [
        (None, {}, NAMES, "old"),
        ("alice", {}, NAMES, "old"),
        ("eve", {}, NAMES, "old"),
        ("mary", {}, {}, "new"),
        ("mary", {}, {"mary": False}, "new"),
        ("mary", {"allow": {"manage": ["bob"]}}, NAMES, "new"),
    ],
    ids=[
        *("nobody signs", "who may charge it", "somebody unknown", "unknown in the new log"),
        *("who may not create there", "who does not manage all of it"),
    ],
)
def test_who_may_not_move_it_is_told_so_before_anything_is_closed(name, inner, names, which):
    old, new = begun(**inner), known(Archived(3, THERE), names)
    signer = None if name is None else RequestSigner(private_key(name), name)
    with pytest.raises(Unmovable, match=f"of the {which} log would refuse it"):
        plan(old, new, "d", signer)
    with pytest.raises(Unmovable, match=f"of the {which} log would refuse it"):
        moved_by(name, old, new)
    assert not any(ledger.closed for ledger in old.ledgers)
    assert not any(ledger.policies for ledger in new.ledgers)


def test_a_move_that_was_begun_by_somebody_who_was_removed_is_ended_by_another():
    old, new = begun(), known(Archived(3, THERE), NAMES)
    moved_by("mary", old, new)
    by(new, None).remove_principal("mary", operator_key=private_key(OPERATOR))
    with pytest.raises(Unmovable, match="of the new log would refuse it"):
        moved_by("mary", old, new)
    known(new, {"mary": False}, mary="mary, anew")
    by(old, "mary")
    new.signer = RequestSigner(private_key("mary, anew"), "mary")
    assert move(old, new, old, new, "d").sent == 0
