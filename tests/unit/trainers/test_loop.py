"""Trainings that end, die and go on. Noise comes from seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from streams.sdk.errors import DecisionTimeout, InvalidRequest, ReleasedTwice
from streams.trainers.checkpoint import Checkpoint
from streams.trainers.loop import Descent, PrivateTrainer
from streams.trainers.steps import PrivateSteps
from tests.unit.trainers.rosters import FilterService

NAME = ("digits", "night-7")
TARGETS = np.random.default_rng(8).normal([1.0, -2.0], 0.3, (300, 2))
Floats = NDArray[np.float64]


def towards_targets(model: Floats, positions: NDArray[np.int64]) -> Floats:
    return np.asarray(model - TARGETS[positions])


class Crash(BaseException):
    """The process ends here."""


def trainer(
    service: FilterService,
    checkpoint: Checkpoint | None = None,
    gradients: Callable[[Floats, NDArray[np.int64]], Floats] = towards_targets,
    seed: int = 1,
    momentum: float = 0.0,
    every: int = 1,
    released: int | None = None,
    rate: float = 0.2,
    planned: int | None = None,
) -> PrivateTrainer:
    steps = PrivateSteps(
        service.open(released),
        np.arange(300),
        clip_norm=1.0,
        noise_multiplier=2.0,
        sampling_rate=rate,
        expected_batch=300.0 * rate,
        not_private_generator=np.random.default_rng(seed),
        steps=planned,
    )
    return PrivateTrainer(
        steps,
        gradients,
        Descent(0.5, momentum),
        checkpoint=checkpoint,
        checkpoint_every=every,
        users_at_once=16,
    )


def test_a_training_finds_the_mean_of_its_users() -> None:
    service = FilterService()
    released: list[int] = []
    model = trainer(service).run(
        np.zeros(2), 60, released=lambda step, model: released.append(step)
    )
    assert model == pytest.approx(TARGETS.mean(axis=0), abs=0.25)
    assert released == list(range(60))
    assert len(service.charges) == 60


def test_descent_with_momentum_adds_up_what_was_before() -> None:
    descent = Descent(lambda step: 0.1 * (step + 1), momentum=0.5)
    model = descent.move(np.zeros(1), np.ones(1), 0)
    model = descent.move(model, np.ones(1), 1)
    assert model == pytest.approx([-0.1 - 0.2 * 1.5])
    other = Descent(0.1, momentum=0.5)
    other.restore(dict(descent.state()))
    assert other.move(np.zeros(1), np.zeros(1), 2) == pytest.approx([-0.075])


@pytest.mark.parametrize(
    ("rate", "hands_back", "goes_on"),
    [
        (0.2, False, 8),
        (0.2, True, 8),  # it may have been drawn, so it is given up
        (1.0, False, 8),
        (1.0, True, 7),  # there are no coins
    ],
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_interrupted_training_charges_and_draws_each_step_once(
    tmp_path: Path, momentum: float, rate: float, hands_back: bool, goes_on: int
) -> None:
    service, checkpoint = FilterService(epsilon=50.0), Checkpoint(tmp_path / "run.npz")
    dies_in = 7

    def dying(model: Floats, positions: NDArray[np.int64]) -> Floats:
        if len(service.decisions) == dies_in + 1:
            raise Crash
        return towards_targets(model, positions)

    with pytest.raises(Crash):
        trainer(service, checkpoint, dying, momentum=momentum, rate=rate).run(np.zeros(2), 20)
    assert checkpoint.released() == dies_in - 1
    assert len(service.charges) == dies_in + 1
    released = checkpoint.released() if hands_back else None
    again = trainer(service, checkpoint, seed=2, momentum=momentum, released=released, rate=rate)
    seen: list[int] = []
    again.run(np.full(2, 99.0), 20, released=lambda step, model: seen.append(step))
    assert seen == list(range(goes_on, 20))
    assert len(service.charges) == 20
    # The model went on from the checkpoint, not from what was given.
    first = checkpoint.load(NAME)
    assert first is not None
    assert np.abs(first.arrays["model"]).max() < 5.0


def test_model_is_saved_before_it_is_published(tmp_path: Path) -> None:
    service, checkpoint = FilterService(), Checkpoint(tmp_path / "run.npz")

    def seen(step: int, model: Floats) -> None:
        saved = checkpoint.load(NAME)
        assert saved is not None
        assert saved.released == step
        assert np.array_equal(saved.arrays["model"], model)

    trainer(service, checkpoint).run(np.zeros(2), 5, released=seen)


@pytest.mark.parametrize(("planned", "made"), [(None, "5 steps"), (7, "5 of its 7 planned steps")])
@pytest.mark.parametrize("more", [0, 2])
@pytest.mark.parametrize("has_file", [True, False])
def test_lost_steps_of_an_earlier_attempt_are_reported_once(
    planned: int | None,
    made: str,
    more: int,
    has_file: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    service, checkpoint = FilterService(), Checkpoint(tmp_path / "run.npz")
    first = trainer(service, checkpoint if has_file else None)
    for steps in (3, 5):
        first.run(np.zeros(2), steps)
    assert not caplog.records
    again = trainer(service, checkpoint, planned=planned)
    for _ in range(2):
        again.run(np.zeros(2), 5 + more)
    assert len(caplog.records) == (not has_file)
    assert all(f"has made {made} before" in record.getMessage() for record in caplog.records)


def test_models_between_checkpoints_are_not_published(tmp_path: Path) -> None:
    seen: list[int] = []
    trainer(FilterService(), Checkpoint(tmp_path / "run.npz"), every=4).run(
        np.zeros(2), 10, released=lambda step, model: seen.append(step)
    )
    assert seen == [3, 7, 9]


def test_training_continues_after_an_error() -> None:
    service = FilterService()
    failing = trainer(service)
    failing.run(np.zeros(2), 3)
    service.timeouts = 1
    with pytest.raises(DecisionTimeout):
        failing.run(np.zeros(2), 6)
    model = failing.run(np.full(2, 99.0), 6)
    assert np.array_equal(model, trainer(FilterService()).run(np.zeros(2), 6))
    assert len(service.charges) == 6


def test_a_checkpoint_ahead_of_the_run_is_refused(tmp_path: Path) -> None:
    service, checkpoint = FilterService(), Checkpoint(tmp_path / "run.npz")
    trainer(service, checkpoint).run(np.zeros(2), 3)
    opened_too_early = trainer(service, checkpoint)
    checkpoint.save(NAME, 2, 3, {"model": np.zeros(2)})
    with pytest.raises(ReleasedTwice):
        opened_too_early.run(np.zeros(2), 5)
    assert len(service.charges) == 3


def test_a_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    service, checkpoint = FilterService(), Checkpoint(tmp_path / "run.npz")
    trainer(service, checkpoint).run(np.zeros(2), 3)
    with pytest.raises(InvalidRequest):
        trainer(service, checkpoint).run(np.zeros(3), 5)
