"""The attack on a small scale: canaries, what they find, and what only tests of two worlds find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.attack.__main__ import is_found
from tests.attack.audit import Effort, attack
from tests.attack.mutants import UNSEEN, half_the_noise, not_clipped_to_levels, sums_not_clipped
from tests.attack.scenarios import ADAPTIVE, FULL_BATCH, OWN, SAMPLED, SUMS, Scenario

SMALL = Effort(runs=8, canaries=160)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "times"),
    [(FULL_BATCH, 15), (ADAPTIVE, 5), (replace(SAMPLED, steps=150), 2), (OWN, 2), (SUMS, 12)],
    ids=lambda value: getattr(value, "name", value),
)
def test_small_canaries_stay_longer_than_large_ones(scenario: Scenario, times: int) -> None:
    _, groups = scenario.run(np.random.default_rng(0), 60)
    assert groups["small"].lasted > times * groups["clip norm"].lasted


@pytest.mark.slow
def test_a_training_is_within_its_claim_and_a_broken_one_is_found() -> None:
    found = attack(FULL_BATCH, 1, SMALL)
    assert [one.exceeds for one in found] == [False, False]
    with not_clipped_to_levels():
        clip_norm, small = attack(FULL_BATCH, 1, SMALL)
    assert (clip_norm.exceeds, small.exceeds) == (False, True)
    with half_the_noise():
        louder = attack(FULL_BATCH, 1, SMALL)
    for before, after in zip(found, louder, strict=True):
        assert after.curve > before.curve


@pytest.mark.slow
def test_stream_of_sums_is_within_its_claim() -> None:
    scenario = replace(SUMS, windows=8)
    assert [one.exceeds for one in attack(scenario, 2, SMALL)] == [False, False]
    with sums_not_clipped():
        clip_norm, small = attack(scenario, 2, SMALL)
    assert (clip_norm.exceeds, small.exceeds) == (True, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [mutant.name for mutant in UNSEEN])
def test_two_worlds_find_what_canaries_cannot(name: str) -> None:
    assert is_found(name)
