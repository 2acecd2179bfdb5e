"""The example with correlated noise, and the groups of docs/dp-ftrl.md, run as shown."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from streams import Halt, Turnstile
from streams.sdk.decisions import StepDecision
from streams.sdk.run import Run
from tests.readme import TOP, blocks, page

WHOLE = (TOP / "examples" / "dp_ftrl.py").read_text(encoding="utf-8")
(TURNS,) = blocks(page("dp-ftrl"))


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """What is there after the training, with all decisions and the users they are of."""
    heard: list[tuple[np.ndarray, StepDecision]] = []
    charge = Run.charge

    def listening(self: Run, users: Any, norms: Any, **options: Any) -> StepDecision:
        decision = charge(self, users, norms, **options)
        heard.append((users, decision))
        return decision

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "charge", listening)
        names: dict[str, Any] = {}
        exec(WHOLE, names)
    return {**names, "heard": heard}


@pytest.mark.slow
def test_the_training_of_the_example_learns(trained: dict[str, Any]) -> None:
    error = np.linalg.norm(trained["model"] - trained["truth"])
    assert error < 0.6
    assert len(trained["heard"]) == trained["STEPS"]


@pytest.mark.slow
def test_documented_training_keeps_the_separation(
    trained: dict[str, Any],
) -> None:
    taken = defaultdict(list)
    for users, decision in trained["heard"]:
        for user in users[decision.granted > 0]:
            taken[int(user)].append(decision.step)
    assert max(map(len, taken.values())) > 3
    assert all((np.diff(steps) >= trained["BANDS"]).all() for steps in taken.values())
    halts: list[Halt] = trained["halts"]
    assert 0 < trained["too_soon"] < len(halts)
    assert trained["too_soon"] == sum(d.too_soon.sum() for _, d in trained["heard"])
    assert len(halts) == sum(d.halted.sum() for _, d in trained["heard"])


@pytest.mark.slow
def test_documented_groups_keep_the_separation(
    trained: dict[str, Any],
) -> None:
    names = dict(trained)
    exec(TURNS, names)
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("phones", measure="gdp", epsilon=1.5, delta=1e-6)
        run = turnstile.run("phones", "turns", min_separation=trained["BANDS"])
        for price, cohort in zip(trained["PRICES"], names["cohorts"], strict=True):
            decided = run.charge(cohort, np.full(len(cohort), 0.1), mechanism=price)
            assert decided.admitted.all()


def test_documented_noise_is_the_inverse_matrix_times_row_noise() -> None:
    """Forward substitution, run as it stands there on rows that are known."""
    lines = WHOLE.splitlines()
    (start,) = (i for i, line in enumerate(lines) if "for back, earlier" in line)
    substitution = "\n".join(line[8:] for line in lines[start : start + 3])
    rows = np.random.default_rng(3).normal(size=(9, 2))
    names: dict[str, Any] = {"COLUMN": np.array([2.0, 1.0, 0.5, 0.25])}
    exec("from collections import deque\ncorrelated = deque(maxlen=3)", names)
    found = []
    for row in rows:
        exec(substitution, names | {"row": row.copy()})
        found.append(names["correlated"][-1])
    matrix = sum(np.diag(np.full(9 - k, entry), -k) for k, entry in enumerate(names["COLUMN"]))
    np.testing.assert_allclose(matrix @ np.array(found), rows)
