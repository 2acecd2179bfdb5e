"""A step that reserves a share of the budget leaves at least that share to every user."""

import pytest

from tests.unit.ledger.ledgers import Log, admitted
from tests.unit.ledger.test_nested_clipping import (
    CLIPS,
    UNIT,
    chain,
    granted,
)


def test_only_steps_that_reserve_nothing_can_spend_the_reserve() -> None:
    log = Log()
    log.create(budget=1.0)
    log.open()
    steps = [admitted(log.charge(step, [1], [1.0], reserve=0.25)) for step in range(26)]
    assert steps == [[True]] * 24 + [[False]] * 2  # each costs 1 / 32
    assert log.spent() == {1: 24 * UNIT // 32}
    assert admitted(log.charge(26, [1], [0.0], reserve=0.25)) == [True]
    rest = [admitted(log.charge(step, [1], [1.0])) for step in range(27, 36)]
    assert rest == [[True]] * 8 + [[False]]
    assert log.spent() == {1: UNIT}
    assert admitted(log.charge(36, [2], [4.0], reserve=0.5)) == [True]
    assert admitted(log.charge(37, [2], [1.0], reserve=0.5)) == [False]
    assert admitted(log.charge(38, [2], [1.0], reserve=0.46875)) == [True]


def test_clipping_grants_what_leaves_the_reserve() -> None:
    log = chain({"budget": 0.5, **CLIPS})
    assert granted(log.charge(0, [1], [1.0], scale=1.0, reserve=0.75)) == pytest.approx(
        [0.5], rel=2**-48
    )
    assert log.spent() == {1: UNIT // 8}
    assert granted(log.charge(1, [1], [1.0], scale=1.0)) == pytest.approx([0.75**0.5], rel=2**-48)
