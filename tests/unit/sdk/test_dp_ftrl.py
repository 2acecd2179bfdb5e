"""The example with correlated noise, and the blocks of docs/dp-ftrl.md, run as shown."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from streams import Turnstile
from streams.sdk.decisions import StepDecision
from streams.sdk.run import Run
from tests.readme import TOP, blocks, page

WHOLE = (TOP / "examples" / "dp_ftrl.py").read_text(encoding="utf-8")
(TURNS,) = (block for block in blocks(page("dp-ftrl")) if "rotating_cohort" in block)


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """What is there after the training, with all decisions and the users they are of."""
    heard: list[tuple[list[Any], StepDecision]] = []
    charge = Run.charge

    def listening(self: Run, users: Any, norms: Any, **options: Any) -> StepDecision:
        decision = charge(self, users, norms, **options)
        heard.append((list(users), decision))
        return decision

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "charge", listening)
        names: dict[str, Any] = {}
        exec(WHOLE, names)
    return {**names, "heard": heard}


def test_the_training_of_the_example_learns(trained: dict[str, Any]) -> None:
    assert np.linalg.norm(trained["model"] - trained["truth"]) < 0.6
    assert len(trained["heard"]) == trained["GROUPS"] * trained["PASSES"]


def test_documented_training_charges_every_user_once_per_pass(trained: dict[str, Any]) -> None:
    taken = defaultdict(list)
    for users, decision in trained["heard"]:
        assert decision.admitted.all()
        for user in users:
            taken[user].append(decision.step)
    assert len(taken) == len(trained["users"])
    assert {len(steps) for steps in taken.values()} == {trained["PASSES"]}
    assert all(set(np.diff(steps)) == {trained["GROUPS"]} for steps in taken.values())


def test_documented_groups_keep_the_separation(trained: dict[str, Any]) -> None:
    names = {**trained, "STEPS": 30}
    exec(TURNS, names)
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("phones", measure="gdp", epsilon=1.5, delta=1e-6)
        run = turnstile.run("phones", "turns", min_separation=trained["GROUPS"])
        for cohort in names["cohorts"]:
            decided = run.charge(cohort, np.full(len(cohort), 0.1), noise_stddev=6.0)
            assert decided.admitted.all()
