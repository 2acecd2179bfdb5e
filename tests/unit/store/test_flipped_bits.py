"""One flipped bit in anything that is stored changes no decision: ``tests.flips`` has more."""

from tests.flips import REFUSED, SAME, flips


def test_flipped_bit_is_refused_or_repaired() -> None:
    outcomes = {flip()[1] for _, flip in flips(count=240, seed=1)}
    assert outcomes == {REFUSED, SAME}
