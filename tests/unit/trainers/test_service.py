"""Trainers on the service itself, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from accounting import RenyiFilter
from streams import InvalidRequest, Turnstile
from streams.trainers import Checkpoint, Descent, IndividualDPClassifier, PrivateSteps
from streams.trainers import PrivateTrainer as Trainer
from streams.trainers.rosters import TrainingRun
from tests.unit.trainers.rosters import FilterService
from tests.unit.trainers.test_classifier import digits

SIZES = np.linspace(0.02, 1.3, 60)
ORDER, BUDGET = 8.0, 1.0


@pytest.fixture
def service() -> Iterator[Turnstile]:
    with Turnstile.in_memory(partitions=3) as turnstile:
        turnstile.create_dataset("digits", measure="renyi", orders=[ORDER], budget=[BUDGET])
        yield turnstile


def steps_of(run: TrainingRun, seed: int = 1) -> PrivateSteps:
    return PrivateSteps(
        run,
        np.arange(60),
        clip_norm=1.0,
        noise_stddev=2.0,
        sampling_rate=0.3,
        expected_batch=18.0,
        not_private_generator=np.random.default_rng(seed),
    )


def gradients(model: NDArray[np.float64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(SIZES[positions, None] * [1.0, 0.0])


def test_the_service_admits_whom_a_filter_admits_that_charges_everybody_at_every_step(
    service: Turnstile,
) -> None:
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


@pytest.mark.parametrize("every", [1, 3])
def test_a_training_that_died_goes_on_where_it_was_released(
    service: Turnstile, tmp_path: Path, every: int
) -> None:
    checkpoint = Checkpoint(tmp_path / "run.npz")

    def dying(model: NDArray[np.float64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
        if run.step == 9:  # step 8 is charged and drawn
            raise Crash
        return gradients(model, positions)

    run = service.run("digits", "night-7", released=checkpoint.released())
    trainer = Trainer(
        steps_of(run), dying, Descent(1.0), checkpoint=checkpoint, checkpoint_every=every
    )
    with pytest.raises(Crash):
        trainer.run(np.zeros(2), 20)
    assert checkpoint.released() == (7 if every == 1 else 5)
    if every == 1:
        run = service.run("digits", "night-7", released=checkpoint.released())
    else:
        with pytest.raises(InvalidRequest, match="go on with released=7"):
            service.run("digits", "night-7", released=checkpoint.released())
        run = service.run("digits", "night-7", released=7)
    assert run.interrupted
    assert run.step == 8
    seen: list[int] = []
    Trainer(steps_of(run, seed=2), gradients, Descent(1.0), checkpoint=checkpoint).run(
        np.zeros(2), 12, released=lambda step, model: seen.append(step)
    )
    assert seen == [8, 9, 10, 11]
    assert checkpoint.released() == 11


def test_a_training_can_charge_each_step_while_the_one_before_is_computed(
    service: Turnstile, tmp_path: Path
) -> None:
    at_work: list[tuple[int, int]] = []  # the step that is computed, and how many were charged

    def computed(model: NDArray[np.float64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
        charged = service.run("digits", "other").charge  # another run is not held up
        charged([999], [1.0], noise_stddev=1e4)
        step = steps.open_step
        assert step is not None
        at_work.append((step.step, run.step))
        if step.step == dies_at:
            raise Crash
        return gradients(model, positions)

    checkpoint = Checkpoint(tmp_path / "run.npz")
    run = service.run("digits", "night-7", released=-1, charges_ahead=True)
    steps, dies_at = steps_of(run), 8
    trainer = Trainer(steps, computed, Descent(1.0), checkpoint=checkpoint, charge_ahead=True)
    with pytest.raises(Crash):
        trainer.run(np.zeros(2), 20)
    assert at_work == [(step, step + 1) for step in range(9)]
    with pytest.raises(InvalidRequest, match="charges_ahead"):  # step 9 was charged as well
        service.run("digits", "night-7", released=checkpoint.released())
    for again in range(2):  # it dies before anything is released, and step 10 was charged as well
        run = service.run("digits", "night-7", released=checkpoint.released(), charges_ahead=True)
        steps, dies_at = steps_of(run, seed=2 + again), 9 + again
        trainer = Trainer(steps, computed, Descent(1.0), checkpoint=checkpoint, charge_ahead=True)
        with pytest.raises(Crash):
            trainer.run(np.zeros(2), 20)
    run = service.run("digits", "night-7", released=checkpoint.released(), charges_ahead=True)
    steps, dies_at = steps_of(run, seed=4), -1
    seen: list[int] = []
    trainer = Trainer(steps, computed, Descent(1.0), checkpoint=checkpoint, charge_ahead=True)
    trainer.run(np.zeros(2), 12, released=lambda step, model: seen.append(step))
    assert seen == [11]
    assert (run.step, run.interrupted) == (12, False)
    assert service.run("digits", "night-7").step == 12, "none is charged that is not made"


def test_levels_that_were_seen_are_charged_one_step_later_if_steps_are_charged_ahead(
    service: Turnstile,
) -> None:
    def levels(name: str, ahead: bool) -> list[NDArray[np.float64]]:
        steps = steps_of(service.run("digits", name))
        charged = []
        for _ in range(8):
            step = steps.begin(ahead=ahead)
            seen = np.minimum(SIZES[step.positions], 1.0)
            charged.append(np.column_stack([step.positions, step.clip_norms, seen]))
            step.add(gradients(np.zeros(2), step.positions))
            step.release(2)
        return charged

    for late, name, ahead in ((1, "waits", False), (2, "ahead", True)):
        known: dict[float, tuple[int, float]] = {}
        for step, rows in enumerate(levels(name, ahead)):
            for user, level, seen in rows.tolist():
                first, norm = known.setdefault(user, (step, seen))
                assert level == (1.0 if step < first + late else pytest.approx(norm, abs=0.011))


@pytest.mark.slow
def test_a_classifier_without_a_run_has_a_service_of_its_own() -> None:
    rows, labels, test_rows, test_labels = digits()
    model = IndividualDPClassifier(
        epsilon=8.0, steps=60, sampling_rate=0.2, noise_stddev=1.5, not_private_seed=1
    )
    assert model.fit(rows, labels).score(test_rows, test_labels) > 0.8
