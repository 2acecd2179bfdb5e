"""Who signs is told of all partitions, and where they do not know the same."""

from streams.operations.principals import KnownPrincipal, known_of
from streams.wire.signatures import public_text
from tests.keys import OPERATOR, public_key
from tests.unit.ledger.signed_logs import SignedLog, operated


def public(name: str) -> str:
    return public_text(public_key(name))


def test_what_all_partitions_know_is_told_once():
    summaries = [operated(("cora", "alice")).ledger.summary() for _ in range(3)]
    known = known_of(summaries)
    assert known.partitions == 3
    assert known.operators == {public(OPERATOR): (0, 1, 2)}
    assert known.principals == [
        KnownPrincipal("alice", public("alice"), False, (0, 1, 2)),
        KnownPrincipal("cora", public("cora"), True, (0, 1, 2)),
    ]


def test_what_some_partitions_know_is_told_with_them():
    summaries = [log.ledger.summary() for log in (operated(("alice",)), SignedLog())]
    known = known_of(summaries)
    assert known.operators == {public(OPERATOR): (0,)}
    assert [each.partitions for each in known.principals] == [(0,)]
