"""PyTorch trainings with correlated noise: `make test-torch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accounting import gdp_budget, square_root_column
from streams import Turnstile
from streams.sdk.errors import InvalidRequest, SeparationChanged
from streams.trainers import Checkpoint, rotating_cohort

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
pytest.importorskip("opacus", reason="Opacus is not installed: make test-torch")
dp = pytest.importorskip("streams.trainers.torch")

LOSS = torch.nn.functional.cross_entropy
USERS, GROUPS = 40, 5
ROWS = torch.tensor(np.random.default_rng(0).normal(size=(USERS, 3)).astype(np.float32))
DATA = torch.utils.data.TensorDataset(ROWS, (ROWS[:, 0] > 0).long())


def made(service: Turnstile, measure: Any = "gdp", **changes: Any) -> tuple[Any, Any, Any, Any]:
    """Return engine, module, optimizer and loader."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    engine = dp.PrivacyEngine(service, dataset="faces", run="night-7", measure=measure)
    settings: dict[str, Any] = {
        "column": square_root_column(GROUPS),
        "target_epsilon": 8.0,
        "target_delta": 1e-5,
        "epochs": 3,
        "max_grad_norm": 1.0,
        "population": 40,
        "examples_are_independent": True,
        **changes,
    }
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(DATA, batch_size=8)
    return engine, *engine.make_private_with_epsilon(
        module=module, optimizer=optimizer, data_loader=loader, **settings
    )


def train(module: Any, optimizer: Any, loader: Any) -> list[list[int]]:
    """Train for one pass; return the users of each step."""
    seen = []
    for rows, labels in loader:
        optimizer.zero_grad()
        LOSS(module(rows), labels).backward()
        seen.append(optimizer.private.open_step.positions.tolist())
        optimizer.step()
    return seen


def test_groups_take_turns_in_every_epoch() -> None:
    with Turnstile.in_memory(partitions=2) as service:
        engine, module, optimizer, loader = made(service)
        before = [parameter.detach().clone() for parameter in module.parameters()]
        epochs = [train(module, optimizer, loader) for _ in range(3)]
        stated = engine.statement()
        assert not any(map(torch.equal, before, module.parameters()))
    turns = [
        rotating_cohort(np.arange(USERS), step, period=GROUPS, key="night-7").tolist()
        for step in range(GROUPS)
    ]
    assert epochs == [turns] * 3
    assert (stated["groups_in_turn"], stated["steps"], stated["planned_steps"]) == (5, 15, 15)
    # Three participations, not fifteen steps.
    noise = np.sqrt(3) / gdp_budget(8.0, 1e-5)
    assert stated["noise_multiplier"] == pytest.approx(noise, rel=2e-4)


def test_training_continues_after_a_crash(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "model.npz")
    with Turnstile.in_memory(partitions=2) as service:
        _, module, optimizer, loader = made(service, measure="steps")
        train(module, optimizer, loader)
        for rows, labels in loader:
            optimizer.zero_grad()
            LOSS(module(rows), labels).backward()
            if optimizer.private.step == 7:  # charged, and never released
                break
            optimizer.step()
            dp.save(checkpoint, module, optimizer)
        weights = [parameter.detach().clone() for parameter in module.parameters()]
        _, module, optimizer, loader = made(service, measure="steps")
        assert dp.restore(checkpoint, module, optimizer)
        assert all(map(torch.equal, weights, module.parameters()))
        assert optimizer.private.step == 8
        assert len(train(module, optimizer, loader)) == 5
        assert len(train(module, optimizer, loader)) == 2
        assert len(loader) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling_rate": 0.1},
        {"charge_ahead": True},
        {"epochs": None},
        {"column": square_root_column(GROUPS + 1)},
        {"column": [1.0, 2.0, 4.0]},
    ],
)
def test_settings_that_do_not_fit_are_rejected(changes: dict[str, Any]) -> None:
    with Turnstile.in_memory(partitions=1) as service, pytest.raises(InvalidRequest):
        made(service, **changes)


def test_run_of_sampled_steps_cannot_go_on_with_correlated_noise() -> None:
    with Turnstile.in_memory(partitions=1) as service:
        _, module, optimizer, loader = made(service, measure="renyi", column=None)
        train(module, optimizer, loader)
        with pytest.raises(SeparationChanged):
            made(service, measure="renyi")
