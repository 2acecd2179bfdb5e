"""Trainers on the service itself, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from accounting import RenyiFilter
from streams import Turnstile
from streams.sdk.errors import DecisionTimeout, Fenced
from streams.sdk.run import Run
from streams.trainers import Checkpoint, Descent, PrivateSteps
from streams.trainers import PrivateTrainer as Trainer
from tests.unit.sdk.partitions import Partitions
from tests.unit.trainers.rosters import FilterService

Floats = NDArray[np.float64]
SIZES = np.linspace(0.02, 1.3, 60)
ORDER, BUDGET = 8.0, 1.0


@pytest.fixture
def service() -> Iterator[Turnstile]:
    with Turnstile.in_memory(partitions=3) as turnstile:
        turnstile.create_dataset(
            "digits",
            measure="renyi",
            orders=[ORDER],
            budget=[BUDGET],
            assume_independent_timing=True,
        )
        yield turnstile


def steps_of(run: Run, seed: int = 1, **changes: Any) -> PrivateSteps:
    arguments: dict[str, Any] = {
        "clip_norm": 1.0,
        "noise_multiplier": 2.0,
        "sampling_rate": 0.3,
        "expected_batch": 18.0,
        "not_private_generator": np.random.default_rng(seed),
    }
    return PrivateSteps(run, np.arange(60), **arguments | changes)


def gradients(model: NDArray[np.float64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(SIZES[positions, None] * [1.0, 0.0])


def test_service_admits_the_users_that_a_filter_admits(service: Turnstile) -> None:
    filtered = FilterService(order=ORDER, _rule=RenyiFilter([ORDER], [BUDGET]))
    filtered.spent = RenyiFilter([ORDER], [BUDGET]).initial_state(60)
    pair = [steps_of(service.run("digits", "night-7")), steps_of(filtered.open())]
    admitted = []
    for _ in range(70):
        opened = [steps.begin() for steps in pair]
        assert np.array_equal(opened[0].positions, opened[1].positions)
        assert opened[0].clip_norms == pytest.approx(opened[1].clip_norms)
        released = []
        for step in opened:
            step.add(gradients(np.zeros(2), step.positions))
            released.append(step.release(2))
        assert released[0] == pytest.approx(released[1], rel=1e-6)
        admitted.append(int(filtered.decisions[-1].admitted.sum()))
    assert admitted[0] == 60
    assert 0 < admitted[-1] < 50


class Crash(BaseException):
    """The process ends here."""


def test_step_that_may_have_been_drawn_is_given_up(service: Turnstile) -> None:
    steps_of(service.run("digits", "night-7")).begin()
    run = service.run("digits", "night-7", released=-1)
    assert (run.step, run.interrupted) == (0, True)
    assert steps_of(run).begin().step == 1


def test_a_step_is_charged_while_the_one_before_is_computed(
    service: Turnstile, tmp_path: Path
) -> None:
    at_work: list[tuple[int, int]] = []  # the step that is computed, and how many were charged

    def computed(model: Floats, positions: NDArray[np.int64]) -> Floats:
        charged = service.run("digits", "other").charge  # another run is not held up
        charged([999], [1.0], noise_stddev=1e4)
        step = steps.open_step
        assert step is not None
        at_work.append((step.step, run.step))
        if step.step == dies_at:
            raise Crash
        return gradients(model, positions)

    checkpoint = Checkpoint(tmp_path / "run.npz")
    for begins_at, last in ((0, 8), (10, 10)):  # step 9 was charged as well
        dies_at = last
        run = service.run("digits", "night-7")
        assert (run.step, run.interrupted) == (begins_at, False)
        steps = steps_of(run)
        trainer = Trainer(steps, computed, Descent(1.0), checkpoint=checkpoint, charge_ahead=True)
        with pytest.raises(Crash):
            trainer.run(np.zeros(2), 20)
    assert at_work == [(step, step + 1) for step in (*range(9), 10)]
    run = service.run("digits", "night-7")
    steps, dies_at = steps_of(run, seed=4), -1
    seen: list[int] = []
    trainer = Trainer(steps, computed, Descent(1.0), checkpoint=checkpoint, charge_ahead=True)
    trainer.run(np.zeros(2), 14, released=lambda step, model: seen.append(step))
    assert seen == [12, 13]
    assert (run.step, run.interrupted) == (14, False)
    assert service.run("digits", "night-7").step == 14, "none is charged that is not made"


# --- a trainer that sleeps while its successor goes on --------------------------------------------


class Interrupted(Descent):
    """Gradient descent that does something else once, between a release and its checkpoint."""

    def __init__(self, at: int, meanwhile: Callable[[], object]) -> None:
        super().__init__(1.0)
        self.at, self.meanwhile = at, meanwhile

    def move(self, model: Floats, gradient: Floats, step: int) -> Floats:
        if step == self.at:
            self.meanwhile()
        return super().move(model, gradient, step)


class SlowFile(Checkpoint):
    """A checkpoint whose writer sleeps once, after the service has said that its attempt holds."""

    def __init__(self, path: Path, at: int, meanwhile: Callable[[], object]) -> None:
        super().__init__(path)
        self.at, self.meanwhile = at, meanwhile

    def save(self, name: tuple[str, str], attempt: int, released: int, arrays: Any) -> None:
        if released == self.at:
            self.meanwhile()
        super().save(name, attempt, released, arrays)


@pytest.mark.parametrize("sleeps", ["before the service is asked", "before the file is written"])
def test_a_trainer_that_was_succeeded_releases_nothing(
    service: Turnstile, tmp_path: Path, sleeps: str
) -> None:
    path = tmp_path / "run.npz"
    shown: list[tuple[str, int]] = []

    def train(name: str, steps: int, descent: Descent, file: Checkpoint) -> None:
        trainer = Trainer(
            steps_of(service.run("digits", "night-7")), gradients, descent, checkpoint=file
        )
        trainer.run(np.zeros(2), steps, released=lambda step, model: shown.append((name, step)))

    def successor() -> None:
        train("B", 8, Descent(1.0), Checkpoint(path))

    descent, file = Interrupted(3, successor), Checkpoint(path)
    if sleeps == "before the file is written":
        descent, file = Descent(1.0), SlowFile(path, 3, successor)
    with pytest.raises(Fenced):
        train("A", 8, descent, file)
    assert shown == [("A", 0), ("A", 1), ("A", 2), *(("B", step) for step in range(4, 8))]
    assert Checkpoint(path).released() == 7


def test_resumed_trainer_without_a_checkpoint_releases_nothing(service: Turnstile) -> None:
    shown: list[int] = []
    descent = Interrupted(3, lambda: service.run("digits", "night-7"))
    trainer = Trainer(steps_of(service.run("digits", "night-7")), gradients, descent)
    with pytest.raises(Fenced):
        trainer.run(np.zeros(2), 8, released=lambda step, model: shown.append(step))
    assert shown == [0, 1, 2]


def test_unconfirmed_release_is_published_after_continuing(tmp_path: Path) -> None:
    lossy = Partitions(3)
    lossy.create("digits", measure="renyi", orders=[ORDER], budget=[BUDGET])
    shown: list[int] = []
    file = Checkpoint(tmp_path / "run.npz")

    def lose_answers() -> None:
        lossy.mute = {0, 1, 2}

    trainer = Trainer(
        steps_of(lossy.turnstile.run("digits", "night-7")),
        gradients,
        Interrupted(0, lose_answers),
        checkpoint=file,
    )
    with pytest.raises(DecisionTimeout):
        trainer.run(np.zeros(2), 1, released=lambda step, model: shown.append(step))
    assert (shown, file.released()) == ([], -1)
    lossy.mute = set()
    trainer.run(np.zeros(2), 1, released=lambda step, model: shown.append(step))
    assert (shown, file.released()) == ([0], 0)


def test_levels_apply_one_step_later_when_charging_ahead(service: Turnstile) -> None:
    def levels(name: str, ahead: bool) -> list[NDArray[np.float64]]:
        run = service.run("digits", name)
        steps = steps_of(run, steps=8, noise_multiplier=4.0)
        charged = []
        for _ in range(8):
            step = steps.begin(ahead=ahead)
            seen = np.minimum(2.0 * SIZES[step.positions], 1.0)
            charged.append(np.column_stack([step.positions, step.clip_norms, seen]))
            step.add(gradients(np.zeros(2), step.positions))
            step.release(2)
        assert service.run("digits", name).step == 8, "no step beyond the plan is charged"
        return charged

    for late, name, ahead in ((1, "waits", False), (2, "ahead", True)):
        known: dict[float, tuple[int, float]] = {}
        for step, rows in enumerate(levels(name, ahead)):
            for user, level, seen in rows.tolist():
                first, norm = known.setdefault(user, (step, seen))
                assert level == (1.0 if step < first + late else pytest.approx(norm, abs=0.011))
