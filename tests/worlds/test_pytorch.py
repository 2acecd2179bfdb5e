"""Trainings with PyTorch do the same with one user and without: `make test-torch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from streams import Turnstile
from tests.worlds.examples import BROKEN, FEATURES, OTHERS, USER, USUAL, Example, arrays
from tests.worlds.neighbours import SEED, Fact, Noisy, Program, check_neighbours, flat

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
pytest.importorskip("opacus", reason="Opacus is not installed: make test-torch")
from streams.trainers import Checkpoint, PrivacyEngine  # noqa: E402
from streams.trainers.torch import save  # noqa: E402

pytestmark = pytest.mark.slow
POPULATION = 20


def network() -> Any:
    torch.manual_seed(SEED)
    layers = (
        torch.nn.Linear(FEATURES, 4),
        torch.nn.Tanh(),
        torch.nn.Dropout(),
        torch.nn.Linear(4, 2),
    )
    return torch.nn.Sequential(*layers)


def train(turnstile: Turnstile, data: list[Example], run: str, **changes: Any) -> Iterator[Fact]:
    """Train and save; yield what is public of every step and of the statement."""
    users, features, labels = arrays(data)
    with np.errstate(over="ignore"):
        tensors = torch.tensor(features.astype(np.float32)), torch.tensor(labels)
    module = network()
    settings: dict[str, Any] = {
        "users": users,
        "population": POPULATION,
        "epochs": 2,
        "max_physical_batch_size": 8,
        "target_epsilon": 8.0,
        "target_delta": 1e-5,
        "max_grad_norm": 1.0,
        "examples_are_independent": True,
        "not_private_generator": np.random.default_rng(SEED),
        **changes,
    }
    engine = PrivacyEngine(turnstile, dataset="d", run=run)
    module, optimizer, loader = engine.make_private_with_epsilon(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.5),
        data_loader=torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(*tensors), batch_size=5
        ),
        **settings,
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    checkpoint = Checkpoint(f"{run}.npz")
    yield Fact("steps in a pass", (len(loader), engine.get_epsilon(1e-5)))
    while len(loader):
        for batch, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(batch), targets).backward()
            optimizer.step()
            if loader.is_last:
                schedule.step()
                save(checkpoint, module, optimizer)
                values = [one.detach().numpy() for one in module.parameters()]
                yield Fact("step", (checkpoint.released(), schedule.get_last_lr()))
                yield Fact("model", Noisy(flat(values)))
    yield Fact("statement", engine.statement())
    yield Fact("saved step", checkpoint.released())
    turnstile.close_run("d", run)


def many_each(data: list[Example]) -> Iterator[Fact]:
    with Turnstile.in_memory(partitions=2) as turnstile:
        yield from train(turnstile, data, "r")


def one_each(data: list[Example]) -> Iterator[Fact]:
    """Each example is a user: some gradients are not written out."""
    with Turnstile.in_memory(partitions=2) as turnstile:
        yield from train(turnstile, data, "r", users=None)


def everybody(data: list[Example]) -> Iterator[Fact]:
    """Take one step with everybody. Only the model with and without the user can differ."""
    with Turnstile.in_memory(partitions=2) as turnstile:
        for fact in train(turnstile, data, "r", sampling_rate=1.0, epochs=1, charge_ahead=True):
            is_model = isinstance(fact.value, Noisy)
            yield Fact("model", Noisy(fact.value.value, 1.0 / POPULATION)) if is_model else fact


def second_month(data: list[Example]) -> Iterator[Fact]:
    """Train again. The user is new, and nobody else has budget left."""
    with Turnstile.in_memory(partitions=2) as turnstile:
        yield from train(turnstile, [one for one in data if one.user != USER], "one")
        yield from train(turnstile, data, "two")


PROGRAMS: list[Callable[[list[Example]], Iterator[Fact]]] = [many_each, everybody, second_month]
SINGLE = {name: one for name, one in {**USUAL, **BROKEN}.items() if len(one) == 1}


@pytest.mark.parametrize("name", {**USUAL, **BROKEN})
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_user_of_a_training_decides_nothing(program: Program[Example], name: str) -> None:
    check_neighbours(program, OTHERS, {**USUAL, **BROKEN}[name])


@pytest.mark.parametrize("name", SINGLE)
def test_one_example_of_a_training_decides_nothing(name: str) -> None:
    check_neighbours(one_each, OTHERS, SINGLE[name])
