"""The README's examples run on a real service, also after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.service import Service
from tests.readme import blocks, blocks_of_the_service, page

USERS = np.arange(20)
STEPS = 60  # steps of norm 1 at noise 4; their epsilon exceeds 8 at delta 1e-5
CHARGE_OF_A_STEP = 1 / 16  # of mu squared


class Crash(Exception):
    """Raised to end the trainer."""


class Trainer:
    """Define what the README omits: a model, its checkpoint, and the release of a step."""

    def __init__(self, crash_at: int) -> None:
        self.released = -1
        self.saved = 0.0
        self.seen: list[int] = []
        self.crash_at = crash_at

    def names(self) -> dict[str, Any]:
        return {
            "steps": STEPS,
            "last_released": lambda: self.released,
            "load_checkpoint": lambda: self.saved,
            "gradient_norms": lambda model, step: (USERS, np.full(len(USERS), 2.5)),
            "release": self.release,
        }

    def release(self, model: float, decision: Any) -> float:
        self.seen.append(decision.step)
        if decision.step == self.crash_at:
            self.crash_at = -1
            raise Crash
        self.released = decision.step
        self.saved = model + decision.admitted.sum()
        return self.saved


@pytest.fixture
def readers_shell(shared: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setenv("TURNSTILE_PREFIX", shared.prefix)
    return shared


def test_the_examples_of_the_service_run_and_survive_a_crash(
    readers_shell: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    training, following = (
        block.replace("localhost:9092", readers_shell.kafka)
        for block in sorted(blocks_of_the_service(), key=lambda block: "t.halts(" in block)
    )
    trainer = Trainer(crash_at=3)
    with pytest.raises(Crash):
        exec(training, trainer.names())
    names = trainer.names()
    exec(training, names)
    # Step 3 was charged, not released, and handed back.
    assert trainer.seen == [0, 1, 2, 3, *range(3, STEPS)]
    budget = names["run"].policy.budget[0] / 2**44
    paid = int(budget / CHARGE_OF_A_STEP)
    assert 0 < paid < STEPS
    assert trainer.saved == paid * len(USERS)
    readers_shell.audit()

    exec(following, names)
    halts = [line.split() for line in capsys.readouterr().out.splitlines() if "[" not in line]
    assert len(halts) == (STEPS - paid) * len(USERS)
    assert {int(user) for user, *_ in halts} == set(USERS.tolist())
    assert {dataset for *_, dataset in halts} == {"mnist"}


def test_the_tutorial_trains_over_the_service_and_resumes_from_its_checkpoint(
    readers_shell: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (over_kafka,) = blocks(page("get-started/service"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    over_kafka = over_kafka.replace("localhost:9092", readers_shell.kafka)
    # The auditor counts in exact fractions, and cannot check 1,200 steps in time.
    assert "steps=1200," in over_kafka
    over_kafka = over_kafka.replace("steps=1200", "steps=120")
    exec(over_kafka, names)
    model, run = names["model"], names["run"]
    assert run.step == 120
    assert model.score(names["X"][1400:], names["y"][1400:]) > 0.7
    exec(over_kafka, names)  # training is complete: the same model, and no charge
    assert (names["run"].attempt, names["run"].step) == (run.attempt + 1, 120)
    np.testing.assert_array_equal(names["model"].coef_, model.coef_)
    readers_shell.audit()
