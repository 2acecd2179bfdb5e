"""Steps with correlated noise, on the service itself, in this process."""

from __future__ import annotations

import math
import stat
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from accounting import banded_step, square_root_column
from accounting.release.exact_normals import ExactNormals
from streams import Turnstile
from streams.sdk.errors import InvalidRequest
from streams.sdk.run import Run
from streams.trainers import (
    Checkpoint,
    CorrelatedSteps,
    Descent,
    PrivateTrainer,
    noise_for_steps,
    rotating_cohort,
)
from streams.trainers.correlated_noise import CorrelatedNoise

Floats = NDArray[np.float64]
USERS, BANDS, SIZE = 40, 4, 3
ROWS = np.round(np.random.default_rng(0).uniform(-0.5, 0.5, (USERS, SIZE)) * 64) / 64
COLUMN = square_root_column(BANDS)


@pytest.fixture
def service() -> Iterator[Turnstile]:
    with Turnstile.in_memory(partitions=3) as turnstile:
        turnstile.create_dataset("phones", measure="gdp", epsilon=3.0, delta=1e-6)
        yield turnstile


def run_of(service: Turnstile) -> Run:
    return service.run("phones", "night-7", min_separation=BANDS)


def steps_of(run: Run, **changes: Any) -> CorrelatedSteps:
    arguments: dict[str, Any] = {
        "column": COLUMN,
        "clip_norm": 1.0,
        "noise_multiplier": 8.0,
        "expected_batch": 8.0,
        "steps": 12,
        "not_private_generator": np.random.default_rng(3),
    }
    return CorrelatedSteps(run, np.arange(USERS), **arguments | changes)


def release(steps: CorrelatedSteps) -> tuple[NDArray[np.int64], Floats]:
    """Make one step; return its users and what it releases."""
    step = steps.begin()
    step.add(ROWS[step.positions])
    return step.positions, step.release(SIZE)


# --- the noise ---


def post_processed(column: Floats, bits: int, rows: dict[int, list[int]]) -> dict[int, list[int]]:
    """Return what is released, from rows of C x + Z alone; steps without a row release nothing."""
    entries = [int(entry * 2**bits) for entry in column]
    released: dict[int, list[int]] = {}
    for step, row in sorted(rows.items()):
        earlier = [(k, step - k) for k in range(1, len(entries)) if step - k in released]
        released[step] = [
            math.floor(
                Fraction(entry - sum(entries[k] * released[t][i] for k, t in earlier), 2**bits)
                + Fraction(1, 2)
            )
            for i, entry in enumerate(row)
        ]
    return released


def test_released_rows_are_computed_from_rows_of_the_mechanism(service: Turnstile) -> None:
    """Bit for bit, in integers by hand."""
    steps = steps_of(run_of(service))
    bits = 16
    normals = ExactNormals(np.random.default_rng(3))
    sums: list[list[int]] = []
    rows: dict[int, list[int]] = {}
    values: list[Floats] = []
    for t in range(12):
        step = steps.begin()
        exponent = math.frexp(step.noise_stddev)[1] - 24
        total = ROWS[step.positions].sum(axis=0)  # exact: multiples of 2^-6
        sums.append([int(Fraction(x) / Fraction(2) ** exponent) for x in total.tolist()])
        stddev = Fraction(step.noise_stddev) * 2**bits / Fraction(2) ** exponent
        noise = normals.draw(stddev, SIZE).tolist()
        entries = [int(entry * 2**bits) for entry in steps.column[: t + 1]]
        rows[t] = [
            sum(entry * sums[t - k][i] for k, entry in enumerate(entries)) + noise[i]
            for i in range(SIZE)
        ]
        step.add(ROWS[step.positions])
        values.append(step.release(SIZE))
    released = post_processed(steps.column, bits, rows)
    for t, value in enumerate(values):
        assert value.tolist() == [math.ldexp(y, exponent) / 8.0 for y in released[t]]


@given(
    st.lists(st.floats(0.0, 1.0), max_size=8),
    st.lists(
        st.lists(st.integers(-(2**20), 2**20), min_size=2, max_size=2), min_size=9, max_size=9
    ),
    st.integers(2, 16),
)
def test_rows_are_the_inverse_matrix_times_independent_rows(
    below: list[float], independent: list[list[int]], bits: int
) -> None:
    noise = CorrelatedNoise([1.0, *sorted(below, reverse=True)], bits)
    column = np.pad(noise.column, (0, 9 - len(noise.column)))
    matrix = np.array([[column[r - t] if r >= t else 0.0 for t in range(9)] for r in range(9)])
    rows = np.array([noise.row(t, np.array(row)) for t, row in enumerate(independent)])
    inverse = np.linalg.inv(matrix)
    most = np.abs(inverse).sum(axis=1).max() * 0.5 + 1e-6 * np.abs(rows).max()
    assert np.abs(rows - inverse @ np.array(independent) * 2.0**-bits).max() <= most
    assert np.abs(noise.column * 2.0**bits % 1.0).max() == 0.0


def test_price_of_a_full_column_is_the_noise_multiplier(
    service: Turnstile, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged = []
    charge = Run.charge

    def watched(run: Run, users: Any, norms: Any, **options: Any) -> Any:
        charged.append(options["mechanism"].noise_stddev)
        return charge(run, users, norms, **options)

    monkeypatch.setattr(Run, "charge", watched)
    steps = steps_of(run_of(service))
    for _ in range(12):
        release(steps)
    assert all(8.0 <= noise <= 8.0 * (1 + 1e-14) for noise in charged[:9])
    # The last columns are cut off by the end of the training: what is released of them is less.
    last = [charged[8] * np.linalg.norm(COLUMN) / np.linalg.norm(COLUMN[: 12 - t]) for t in (9, 11)]
    assert [charged[9], charged[11]] == pytest.approx(last, rel=1e-4)


# --- who takes part, and what it costs ---


def test_users_who_must_wait_are_left_out_and_charged_nothing(service: Turnstile) -> None:
    steps = steps_of(run_of(service), cohort=lambda step: np.arange(USERS))
    taken = [release(steps)[0] for _ in range(12)]
    assert [len(positions) for positions in taken] == [USERS, 0, 0, 0] * 3
    halts = list(service.halts("phones", follow=False))
    assert {halt.reason for halt in halts} == {"too-soon"}
    assert len(halts) == 9 * USERS


def test_groups_take_turns_and_every_user_is_in_every_pass(service: Turnstile) -> None:
    steps = steps_of(run_of(service))
    taken = [release(steps)[0].tolist() for _ in range(12)]
    for begin in (0, 4, 8):
        assert sorted(chain.from_iterable(taken[begin : begin + 4])) == list(range(USERS))
    for step, positions in enumerate(taken):
        cohort = rotating_cohort(np.arange(USERS), step, period=BANDS, key="night-7")
        assert positions == cohort.tolist()
    assert not list(service.halts("phones", follow=False))


@pytest.mark.parametrize("levels", ["own", "clip_norm"])
def test_no_user_is_charged_more_than_the_budget(service: Turnstile, levels: Any) -> None:
    """More participations than the budget pays for at the clip norm, in two runs."""
    policy = run_of(service).policy
    spent = np.zeros(USERS)
    noise = noise_for_steps([policy], 3)
    for name in ("first", "second"):
        service.close_run("phones", "night-7" if name == "first" else "first")
        run = service.run("phones", name, min_separation=BANDS)
        steps = steps_of(run, levels=levels, noise_multiplier=noise, cohort=lambda t: np.arange(40))
        for t in range(12):
            step = steps.begin()
            price = banded_step(steps.column[: 12 - t], step.noise_stddev).noise_stddev
            spent[step.positions] += (step.clip_norms / price) ** 2
            step.add(0.1 * ROWS[step.positions])
            step.release(SIZE)
    budget = policy.budget[0] * 2.0**-44
    assert spent.max() <= budget * (1 + 1e-12)
    if levels == "clip_norm":
        assert spent.min() > 0.99 * budget - 1.0 / noise**2
    else:
        assert spent.max() < 0.9 * budget  # gradients are short


def test_level_is_twice_the_norm_of_the_last_participation(service: Turnstile) -> None:
    steps = steps_of(run_of(service), levels="own")
    for t in range(8):
        step = steps.begin()
        norms = np.linalg.norm(0.1 * ROWS[step.positions], axis=1)
        expected = np.ones(len(norms)) if t < BANDS else 2.0 * norms
        assert step.clip_norms == pytest.approx(expected, rel=1e-9)
        step.add(0.1 * ROWS[step.positions])
        step.release(SIZE)


def test_user_without_a_gradient_can_take_part_again(service: Turnstile) -> None:
    steps = steps_of(run_of(service), cohort=lambda step: np.array([5]), levels="own")
    limits = []
    for t in range(12):
        step = steps.begin()
        limits.append(step.clip_norms.tolist())
        step.add(np.zeros((len(step.positions), 1)) if t < 5 else np.ones((len(step.positions), 1)))
        step.release(1)
    # A level of 0 costs nothing and starts no wait. A level of 1 starts one.
    assert limits[:10] == [[1.0], *[[0.0]] * 5, [1.0], [], [], []]


# --- crashes ---


class Crash(BaseException):
    """The process ends here."""


class Watched(Descent):
    """Gradient descent that keeps what was released."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.seen: dict[int, Floats] = {}

    def move(self, model: Floats, gradient: Floats, step: int) -> Floats:
        self.seen[step] = gradient.copy()
        return super().move(model, gradient, step)


def test_training_that_is_killed_goes_on_with_its_noise(service: Turnstile, tmp_path: Path) -> None:
    """Two steps are given up. They have no noise, and keep their places."""
    dies_at, descent = {5, 7}, Watched()
    noise_stddev = 0.0

    def gradients(model: Floats, positions: NDArray[np.int64]) -> Floats:
        nonlocal noise_stddev
        step = steps.open_step
        assert step is not None
        noise_stddev = step.noise_stddev
        if step.step in dies_at:
            dies_at.remove(step.step)
            raise Crash
        return np.zeros((len(positions), SIZE))

    checkpoint = Checkpoint(tmp_path / "night-7.npz")
    for seed in (1, 2, 3):
        steps = steps_of(run_of(service), not_private_generator=np.random.default_rng(seed))
        trainer = PrivateTrainer(steps, gradients, descent, checkpoint=checkpoint)
        if seed < 3:
            with pytest.raises(Crash):
                trainer.run(np.zeros(SIZE), 12)
    model = trainer.run(np.zeros(SIZE), 12)
    assert sorted(descent.seen) == [0, 1, 2, 3, 4, 6, 8, 9, 10, 11]
    assert model == pytest.approx(-sum(descent.seen.values()), abs=1e-9)
    exponent = math.frexp(noise_stddev)[1] - 24
    stddev, rows = Fraction(noise_stddev) * 2**16 / Fraction(2) ** exponent, {}
    for seed, made in ((1, range(5)), (2, range(6, 7)), (3, range(8, 12))):
        normals = ExactNormals(np.random.default_rng(seed))
        rows |= {step: normals.draw(stddev, SIZE).tolist() for step in made}
    for step, released in post_processed(steps.column, 16, rows).items():
        assert descent.seen[step].tolist() == [math.ldexp(y, exponent) / 8.0 for y in released]


def test_checkpoint_with_rows_of_noise_is_readable_by_its_owner_only(
    service: Turnstile, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(tmp_path / "night-7.npz")
    steps = steps_of(run_of(service))
    for _ in range(6):
        release(steps)
        steps.save(checkpoint, {"model": np.zeros(SIZE)})
    assert stat.S_IMODE(checkpoint.path.stat().st_mode) == 0o600
    again = steps_of(run_of(service))
    saved = again.resume(Checkpoint(checkpoint.path))
    assert stat.S_IMODE(checkpoint.path.stat().st_mode) == 0o600
    assert saved is not None
    assert list(saved.arrays) == ["model"]
    with np.load(checkpoint.path) as content:
        assert content["correlated_noise_steps"].tolist() == [3, 4, 5]
    assert again.step == 6


@pytest.mark.parametrize(
    "changes",
    [{"steps": 24}, {"column": COLUMN**0.5}, {"column": COLUMN[:2]}, {"noise_multiplier": 9.0}],
    ids=["more steps", "larger entries", "fewer bands", "other noise"],
)
def test_steps_are_not_released_in_more_rows_than_were_charged(
    service: Turnstile, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """The last steps of a plan are charged for the rows that are left."""
    checkpoint = Checkpoint(tmp_path / "night-7.npz")
    steps = steps_of(run_of(service))
    for _ in range(12):
        release(steps)
    steps.save(checkpoint, {})
    with pytest.raises(InvalidRequest):
        steps_of(run_of(service), **changes).resume(checkpoint)
    assert steps_of(run_of(service), steps=11).resume(checkpoint) is not None


def test_model_of_another_size_than_saved_is_rejected(service: Turnstile, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "night-7.npz")
    steps = steps_of(run_of(service))
    release(steps)
    steps.save(checkpoint, {})
    steps = steps_of(run_of(service))
    steps.resume(checkpoint)
    step = steps.begin()
    step.add(np.zeros((len(step.positions), SIZE + 1)))
    with pytest.raises(InvalidRequest):
        step.release(SIZE + 1)


# --- errors ---


@pytest.mark.parametrize(
    "changes",
    [
        {"column": square_root_column(BANDS + 1)},
        {"column": []},
        {"column": [0.0, 1.0]},
        {"column": [-1.0]},
        {"column": [1.0, math.nan]},
        {"column": [1.0, 0.5, 0.6]},
        {"column": [1.0, -0.5]},
        {"column": [1.0, 9.0]},
        {"steps": 2**20 + 1},
        {"noise_multiplier": lambda step: 8.0},
        {"noise_multiplier": 0.5},
        {"noise_multiplier": math.nan},
        {"steps": 0},
        {"steps": 1.5},
        {"clip_norm": 0.0},
        {"expected_batch": 0.0},
        {"levels": "all"},
    ],
)
def test_invalid_arguments_are_rejected_before_any_charge(
    service: Turnstile, changes: dict[str, Any]
) -> None:
    run = run_of(service)
    with pytest.raises(InvalidRequest):
        steps_of(run, **changes)
    assert run.step == 0


def test_run_without_a_separation_is_rejected(service: Turnstile) -> None:
    with pytest.raises(InvalidRequest, match="min_separation=4"):
        steps_of(service.run("phones", "other"))


def test_user_who_is_given_twice_is_rejected(service: Turnstile) -> None:
    with pytest.raises(InvalidRequest):
        CorrelatedSteps(
            run_of(service),
            [1, 2, 1],
            column=COLUMN,
            clip_norm=1.0,
            noise_multiplier=8.0,
            expected_batch=1.0,
            steps=12,
        )


@pytest.mark.parametrize(
    "cohort",
    [
        lambda t: [0, 0],
        lambda t: [-1],
        lambda t: [USERS],
        lambda t: [0.5],
        lambda t: 5,
        lambda t: [[0], [1]],
        lambda t: np.ones(USERS, dtype=bool),
    ],
)
def test_invalid_cohorts_are_rejected_before_the_charge(
    service: Turnstile, cohort: Callable[[int], Any]
) -> None:
    run = run_of(service)
    steps = steps_of(run, cohort=cohort)
    with pytest.raises(InvalidRequest):
        steps.begin()
    assert run.step == 0


def test_steps_end_with_the_plan_and_are_not_charged_ahead(service: Turnstile) -> None:
    steps = steps_of(run_of(service), steps=2)
    with pytest.raises(InvalidRequest):
        steps.begin(ahead=True)
    assert [len(release(steps)[1]) for _ in range(2)] == [SIZE, SIZE]
    with pytest.raises(InvalidRequest):
        steps.begin()
