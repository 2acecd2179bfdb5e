"""examples/federated_flower.py: devices with filters of their own in Flower: `make test-torch`."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accounting import Gaussian
from accounting.release import ExactNoise
from accounting.research import LocalFilter
from tests import readme

pytest.importorskip("flwr", reason="Flower is not installed: make test-torch")
pytest.importorskip("ray", reason="Flower's simulation is not installed: make test-torch")
pytestmark = pytest.mark.slow

DEVICE = 3
SHAPE = (2, 3)
LONG = np.full(SHAPE, 9.0)  # clipped to the clip norm


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from flwr.supercore.task_identity import TaskIdentity

    module = readme.example("federated_flower")
    monkeypatch.chdir(tmp_path)
    # Flower sets these in the processes that it starts.
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    return module


def ask(example: Any, train: Callable[..., Any], model: Any, kind: str = "train") -> Any:
    """Send a model to a device, and return the content of its answer."""
    from flwr.app import ArrayRecord, Context, Message, RecordDict

    message = Message(
        RecordDict({"arrays": ArrayRecord([model, np.zeros(2)])}), dst_node_id=1, message_type=kind
    )
    context = Context(
        run_id=1,
        node_id=1,
        node_config={"partition-id": DEVICE},
        state=RecordDict(),
        run_config={},
    )
    return example.individual_filter(message, context, train).content


def adding(update: Any) -> Callable[..., Any]:
    """A training that adds an update to the model, and returns more than may leave."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    def train(message: Any, context: Any) -> Any:
        first, second = message.content["arrays"].to_numpy_ndarrays()
        content = RecordDict(
            {
                "arrays": ArrayRecord([first + update, second]),
                "losses": MetricRecord({"loss": 0.1, "num-examples": 20}),
            }
        )
        return Message(content, reply_to=message)

    return train


def stored(folder: Path, device: int = DEVICE) -> list[int]:
    with closing(sqlite3.connect(folder / f"spent-{device}.db")) as file:
        return [units for (units,) in file.execute("SELECT units FROM spent ORDER BY budget")]


def noise_of(example: Any, seed: int) -> Any:
    source, stddev = ExactNoise(np.random.default_rng(seed)), Fraction(example.NOISE)
    count = np.prod(SHAPE) + 2
    drawn = [source.rounded_normal(stddev / Fraction(example.GRID)) for _ in range(count)]
    return np.array(drawn) * example.GRID


def test_a_device_takes_part_until_its_own_filter_denies(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, admissions = LocalFilter(example.RULE), []
    model = np.random.default_rng(0).normal(size=SHAPE)
    norms = [1.0, 0.5, *[1.0] * 12, 1e-3]
    for seed, norm in enumerate(norms):
        monkeypatch.setattr(
            example, "ExactNoise", lambda seed=seed: ExactNoise(np.random.default_rng(seed))
        )
        update = LONG if norm == 1.0 else np.full(SHAPE, norm / np.sqrt(6))
        content = ask(example, adding(update), model)
        assert set(content.keys()) == {"arrays", "metrics"}
        assert dict(content["metrics"]) == {"num-examples": 1}
        first, second = content["arrays"].to_numpy_ndarrays()

        admissions.append(local.admit(Gaussian(example.NOISE), norm * (1 + 1e-12)))
        noise = noise_of(example, seed)
        rest = first - model - noise[:6].reshape(SHAPE)
        taken = np.full(SHAPE, norm / np.sqrt(6)) if admissions[-1] else np.zeros(SHAPE)
        assert rest == pytest.approx(taken, abs=2 * example.GRID)
        assert second == pytest.approx(noise[6:], abs=1e-12)
    assert admissions[0]
    assert not admissions[-2]
    assert stored(tmp_path)[0] == pytest.approx(local.spent[0], rel=1e-9)


def test_the_charge_is_stored_before_anything_is_answered(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends() -> None:
        raise ConnectionAbortedError

    monkeypatch.setattr(example, "ExactNoise", ends)
    for rounds in (1, 2):
        with pytest.raises(ConnectionAbortedError):
            ask(example, adding(LONG), np.zeros(SHAPE))
        local = LocalFilter(example.RULE)
        for _ in range(rounds):
            assert local.admit(Gaussian(example.NOISE), example.CLIP_NORM)
        assert stored(tmp_path)[0] == pytest.approx(local.spent[0], rel=1e-9)


def test_an_evaluation_is_refused(example: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        ask(example, adding(LONG), np.zeros(SHAPE), kind="evaluate")
    assert not list(tmp_path.iterdir())


@pytest.mark.process
def test_flower_simulates_the_example(tmp_path: Path) -> None:
    program = (
        "import federated_flower as f\n"
        "f.ROUNDS = 2\n"
        "f.run_simulation(f.server, f.client, num_supernodes=3)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={
            **os.environ,
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{readme.TOP}{os.pathsep}{readme.TOP / 'examples'}",
            "RAY_USAGE_STATS_ENABLED": "0",
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert "labels of examples outside the devices are right" in finished.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"spent-{device}.db" for device in range(3)
    ]
    assert all(stored(tmp_path, device)[0] > 0 for device in range(3))
