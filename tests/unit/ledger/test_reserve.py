"""A step that reserves a share of the budget leaves at least that share to every user."""

import pytest

from streams import Turnstile
from streams.records import Reason
from streams.records.digests import charge_digest
from streams.records.requests import Charge
from streams.sdk.errors import InvalidRequest
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


def test_reserve_is_part_of_a_step() -> None:
    step = Charge(dataset="d", run="r", attempt=1, step=0, users=[1], norms=[1.0])
    reserving = [
        Charge(dataset="d", run="r", attempt=1, step=0, users=[1], norms=[1.0], reserve=share)
        for share in (0.0, 0.1, 0.2)
    ]
    digests = [charge_digest(one) for one in (step, *reserving)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    log = Log()
    log.create()
    log.open()
    log.charge(0, [1], [1.0], reserve=0.1)
    assert log.charge(0, [1], [1.0]).reason is Reason.STEP_CONTENT_CHANGED
    assert log.charge(1, [1], [1.0], reserve=1.0).reason is Reason.MALFORMED


@pytest.mark.parametrize("reserve", [-0.1, 1.0, float("nan")])
def test_impossible_reserve_is_rejected_before_anything_is_sent(reserve: float) -> None:
    with Turnstile.in_memory(partitions=1) as turnstile:
        turnstile.create_dataset("d", measure="zcdp", budget=1.0)
        run = turnstile.run("d", "r")
        with pytest.raises(InvalidRequest):
            run.charge([1], [1.0], noise_stddev=1.0, reserve=reserve)
        assert run.charge([1], [1.0], noise_stddev=1.0, reserve=0.4).admitted.all()
        assert not run.charge([1], [1.0], noise_stddev=1.0, reserve=0.1).admitted.any()
        assert run.charge([1], [1.0], noise_stddev=1.0).admitted.all()
