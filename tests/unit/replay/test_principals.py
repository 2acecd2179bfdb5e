"""A log of requests that are signed is verified, trimmed or not, and so is who is known."""

import pytest

from streams import Turnstile
from streams.ledger.ledger import PartitionError
from streams.ledger.principals import Operator, Principal
from streams.replay.aggregates import shares_of
from streams.replay.archive import Unreadable
from streams.replay.fold import Fold
from streams.replay.verification import verify
from streams.topics.topics import NORMS
from streams.wire.signatures import public_text
from tests.keys import OPERATOR, private_key, public_key
from tests.unit.replay.service import Archived


@pytest.fixture
def archived() -> Archived:
    """A service in which alice has charged and mary was removed."""
    archived = Archived()
    operator = {"operator_key": private_key(OPERATOR)}
    unsigned = Turnstile(connection=archived)
    for name in ("alice", "mary"):
        public = public_text(public_key(name))
        unsigned.add_principal(name, public, creates=True, **operator)
    alice = Turnstile(connection=archived, principal="alice", request_key=private_key("alice"))
    alice.create_dataset("d", budget=1.0, allow={"charge": ["alice"]})
    run = alice.run("d", "r")
    for _ in range(3):
        run.charge([1, 2, 3, 4], [0.5] * 4, noise_stddev=4.0)
    alice.remove_principal("mary", **operator)
    return archived


def problems(archived: Archived) -> set[str]:
    return {finding.problem for finding in verify(archived, archived).findings}


def test_what_was_signed_leads_to_what_is_kept(archived):
    assert problems(archived) == set()


def test_a_checkpoint_of_a_trimmed_log_knows_who_signs(archived):
    for partition in range(archived.partitions):
        archived.draw(partition)
        archived.trim(NORMS, partition, archived.extent(NORMS, partition).end)
    alice = Turnstile(connection=archived, principal="alice", request_key=private_key("alice"))
    alice.run("d", "r").charge([1, 2], [0.5] * 2, noise_stddev=4.0)
    assert problems(archived) == set()


THIEF = Principal(public_key("thief"), creates=True)


@pytest.mark.parametrize(
    ("tamper", "of"),
    [
        (lambda ledger: ledger.state.principals.__setitem__(("alice",), THIEF), "principals"),
        (lambda ledger: ledger.state.principals.__setitem__(("thief",), THIEF), "principals"),
        (lambda ledger: ledger.state.principals.__delitem__(("alice",)), "principals"),
        (
            lambda ledger: ledger.state.operator.__setitem__((), Operator(THIEF.key, 1, b"")),
            "operator",
        ),
    ],
    ids=["another key", "a stranger", "nobody", "another operator"],
)
def test_somebody_else_in_what_is_kept_is_found(archived, tamper, of):
    tamper(archived.ledgers[0])
    archived._apply(0, b"with which it is written")
    assert problems(archived) == {f"another entry of {of}"}


def test_an_operator_that_is_not_followed_ends_what_is_applied(archived):
    archived.operator_keys = public_text(public_key("another"))
    with pytest.raises(PartitionError, match="operator_keys"):
        list(Fold(archived, 0, archived.extent(NORMS, 0)).steps())
    assert any("operator_keys" in problem for problem in problems(archived))
    with pytest.raises(Unreadable, match="operator_keys"):
        shares_of(archived, "d")
