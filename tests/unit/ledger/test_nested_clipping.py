"""Nested datasets that clip: the largest norm is granted that every budget has room for."""

import numpy as np
import pytest

from streams.records import Reason, Rejected
from streams.records.packing import unpack_norms
from tests.unit.ledger.ledgers import admitted
from tests.unit.ledger.roster_logs import RosterLog, prices, told

CLIPS = {"on_exhaustion": "clip"}
UNIT = 2**44


def chain(*policies: dict) -> RosterLog:
    """A log of datasets d, e and so on, each within the next one, with a run of d."""
    log = RosterLog()
    names = "defghijk"[: len(policies)]
    for number in reversed(range(len(policies))):
        parents = {"parents": [names[number + 1]]} if number + 1 < len(policies) else {}
        made = log.create(names[number], **policies[number], **parents)
        assert not isinstance(made, Rejected), made
    log.open("d")
    return log


def granted(decision) -> list[float]:
    """The norms of a decision about norms of 1, 0 to the halted."""
    norms = np.array(admitted(decision), dtype=float)
    norms[np.frombuffer(decision.clipped, dtype="<u4")] = unpack_norms(decision.granted)
    return norms.tolist()


@pytest.mark.parametrize("is_nested", [False, True])
def test_halted_user_with_a_rest_too_small_pays_nothing(is_nested):
    renyi = {"measure": "renyi", "orders": [64.0], "budget": 64 * 3 / UNIT + 7 / UNIT}
    outer = {"budget": 0.5}
    log = chain({**outer, **CLIPS}, renyi, outer) if is_nested else chain({**renyi, **CLIPS})
    norm = (2 * 3 / UNIT) ** 0.5 * (1 - 2**-40)  # of which 3 units of rho are charged
    assert admitted(log.charge(0, [1], [norm], scale=1.0)) == [True]
    charged = {name: log.spent(name) for name in ("def" if is_nested else "d")}
    assert charged["e" if is_nested else "d"] == {1: [64 * 3]}
    refused = log.charge(1, [1], [1.0], scale=1.0)
    assert (admitted(refused), list(refused.reasons)) == ([False], [int(is_nested)])
    assert {name: log.spent(name) for name in charged} == charged


@pytest.mark.parametrize("by_roster", [False, True])
def test_charged_dataset_decides_whether_norms_are_clipped(by_roster):
    """Whatever those around it do with their own steps."""
    for inner, outer, clipped in ((CLIPS, {}, True), ({}, CLIPS, False), (CLIPS, CLIPS, True)):
        log = chain({"budget": 0.5, **inner}, {"budget": 0.125, **outer})
        log.open("e", "e")
        if by_roster:
            log.enrol([1])
            units = 2 * prices(1.0)
            step = log.step(0, units, members=1)
            assert told(step, "halted") == ([] if clipped else [0])
            assert list(step.granted) == ([5] if clipped else [])
        else:
            decision = log.charge(0, [1], [1.0], scale=1.0)
            assert granted(decision) == pytest.approx([0.5 if clipped else 0.0], rel=2**-48)
        rest = log.charge(0, [1, 2], [0.5, 1.0], scale=1.0, dataset="e", run="e")
        assert admitted(rest) == [not clipped, bool(outer)]


def test_parent_that_clips_accepts_other_mechanisms():
    log = chain({"budget": 0.5}, {"budget": 0.5, **CLIPS})
    assert admitted(log.charge(0, [1], [0.5], mechanism="laplace", scale=1.0)) == [True]
    log = chain({"budget": 0.5, **CLIPS}, {"budget": 0.5})
    refused = log.charge(0, [1], [0.5], mechanism="laplace", scale=1.0)
    assert refused.reason is Reason.INVALID_MECHANISM


@pytest.mark.parametrize("nested", [False, True])
def test_a_step_without_users_has_any_mechanism(nested):
    log = chain(*[CLIPS] * (1 + nested))
    decided = log.charge(0, [], [], mechanism="pure-dp")
    assert (decided.step, decided.users) == (0, 0)
