"""The examples with PyTorch, Lightning and Flower do the same with one user and without."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from streams import Turnstile
from tests.readme import example
from tests.worlds.examples import USER, saved
from tests.worlds.neighbours import Fact, Noisy, Program, check_neighbours, flat

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
pytest.importorskip("opacus", reason="Opacus is not installed: make test-torch")

pytestmark = pytest.mark.slow
FEATURES, STEPS = 20, 4
Row = tuple[int, float]
"""An example: the user, and all of its features."""


def tensors(data: list[Row]) -> tuple[Any, Any, Any]:
    with np.errstate(over="ignore"):
        rows = np.array([[value] * FEATURES for _, value in data]).astype(np.float32)
    users = np.array([user for user, _ in data], dtype=np.int64)
    return users, torch.tensor(rows), torch.tensor(users % 2)


def script(data: list[Row]) -> Iterator[Fact]:
    """Run examples/train_pytorch.py; users from 2,000 on are outside of its dataset."""
    module = example("train_pytorch")
    others = module.examples_of_users

    def given(first: int, count: int) -> Any:
        return tensors(data) if first == 0 else others(first, count)

    with (
        patch.object(module, "examples_of_users", given),
        patch.object(sys, "argv", ["train_pytorch.py", "--epochs", "1"]),
    ):
        torch.manual_seed(0)
        module.main()
    yield from saved("model.npz")


def monthly(data: list[Row]) -> Iterator[Fact]:
    """Run three months of examples/monthly_pytorch.py; a budget pays for two. The user is new."""
    module = example("monthly_pytorch")
    with Turnstile.in_memory(partitions=2) as turnstile, patch.object(module, "STEPS", STEPS):
        for month in ("2026-01", "2026-02", "2026-03"):
            present = data if month == "2026-03" else [one for one in data if one[0] != USER]
            with patch.object(module, "examples_of_month", lambda _, now=present: tensors(now)):
                torch.manual_seed(0)
                model = module.train(turnstile, month)
            yield Fact("model", Noisy(flat([one.detach().numpy() for one in model.parameters()])))
            yield from saved(f"model-{month}.npz")


def lightning(data: list[Row]) -> Iterator[Fact]:
    """Run the training of examples/train_lightning.py."""
    module = example("train_lightning")
    users, *columns = tensors(data)
    given = users, torch.utils.data.TensorDataset(*columns)
    with (
        patch.object(module, "examples_of_users", lambda first, count: given),
        patch.object(module, "STEPS", STEPS),
        Turnstile.in_memory(partitions=2) as turnstile,
    ):
        torch.manual_seed(0)
        made = module.private_training(turnstile, max_physical_batch_size=16)
        shown: dict[str, Any] = {"logger": False, "enable_progress_bar": False}
        trainer = module.lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=1, enable_model_summary=False, **shown
        )
        trainer.fit(made)
        yield Fact("steps", (trainer.global_step, trainer.current_epoch))
        yield from saved("model.npz")


def device(update: list[Any]) -> Iterator[Fact]:
    """Ask a device of examples/federated_flower.py for more rounds than its budget pays for.

    Args:
        update: the trainings of the device; none, if it has no data.
    """
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    module = example("federated_flower")
    asked = RecordDict({"arrays": ArrayRecord([np.zeros((2, 3)), np.zeros(2)])})
    for number in range(20):

        def train(message: Any, context: Any) -> Any:
            found = update[0]() if update else np.zeros((2, 3))
            return Message(
                RecordDict({"arrays": ArrayRecord([found, np.zeros(2)])}), reply_to=message
            )

        context = Context(
            run_id=1, node_id=1, node_config={"partition-id": 3}, state=RecordDict(), run_config={}
        )
        message = Message(asked, dst_node_id=1, message_type="train")
        content = module.individual_filter(message, context, train).content
        arrays = content["arrays"].to_numpy_ndarrays()
        moved = module.CLIP_NORM if number == 0 else None
        yield Fact("answer", (sorted(content.keys()), dict(content["metrics"])))
        yield Fact("shapes", [one.shape for one in arrays])
        yield Fact("model", Noisy(flat(arrays), moved))


def raises() -> Any:
    raise MemoryError("the data of this device are too large")


OTHERS = [(user, (user % 7 - 3) / 4) for user in range(60) for _ in range(1 + user % 3)]
HOSTILE = {
    "one example": [(USER, 0.5)],
    "very many examples": [(USER, 0.5)] * 500,
    "the largest numbers": [(USER, 1e308)],
    "not a number": [(USER, float("nan"))],
}
SCRIPTS: list[Callable[[list[Row]], Iterator[Fact]]] = [script, monthly]
UPDATES: dict[str, Callable[[], Any]] = {
    "small": partial(np.full, (2, 3), 0.01),
    "large": partial(np.full, (2, 3), 1e30),
    "the largest numbers": partial(np.full, (2, 3), 1e308),
    "not a number": partial(np.full, (2, 3), np.nan),
    "of another shape": partial(np.full, (7, 7), 0.5),
    "an error": raises,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("program", SCRIPTS, ids=lambda program: program.__name__)
def test_one_user_of_an_example_decides_nothing(program: Program[Row], name: str) -> None:
    check_neighbours(program, OTHERS, HOSTILE[name])


@pytest.mark.parametrize("name", HOSTILE)
def test_one_user_of_lightning_decides_nothing(name: str) -> None:
    pytest.importorskip("lightning", reason="Lightning is not installed: make test-torch")
    check_neighbours(lightning, OTHERS, HOSTILE[name])


@pytest.mark.parametrize("name", UPDATES)
def test_data_of_a_device_decide_nothing(name: str) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: make test-torch")
    check_neighbours(device, [], [UPDATES[name]])
