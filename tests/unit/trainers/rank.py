"""One of several processes that train together: ``python -m tests.unit.trainers.rank``.

Arguments: a file for the rendezvous, rank, number of ranks, a file for the result, and a JSON
object with what is special about this training.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from accounting import square_root_column
from streams import Turnstile
from streams.trainers import Checkpoint, PrivacyEngine
from streams.trainers.torch import restore, save

USERS = np.repeat(np.arange(60), [1, 2, 3, 2] * 15)
ROWS = torch.tensor(np.random.default_rng(0).normal(size=(120, 1, 8, 8)).astype(np.float32))
LABELS = (ROWS.sum(dim=(1, 2, 3)) > 0).long()


class Task(NamedTuple):
    """A training: a model that is made from a seed, and examples of users.

    Attributes:
        made_up: examples of no user.
    """

    network: Callable[[int], Any]
    data: Any
    users: NDArray[np.int64]
    loss_of: Callable[[Any, Any], torch.Tensor]
    made_up: list[Any]


def loss_of_images(module: torch.nn.Module, batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none").mean()


def network(seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.GroupNorm(2, 4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(256, 2),
    )


IMAGES = Task(
    network,
    torch.utils.data.TensorDataset(ROWS, LABELS),
    USERS,
    loss_of_images,
    [(torch.rand(1, 8, 8), torch.tensor(label)) for label in (0, 1, 1, 0)],
)


def train(out: Path, rank: int, special: dict[str, Any]) -> None:
    """Train, and write the model and what was charged."""
    task = IMAGES
    if special.get("texts"):  # they need transformers and PEFT
        task = importlib.import_module("tests.unit.trainers.finetuning").TEXTS
    module = task.network(rank)  # the ranks begin with the model of rank 0
    if special.get("wrapped"):
        module = torch.nn.parallel.DistributedDataParallel(module)
    turnstile = Turnstile.in_memory(partitions=1) if rank == 0 else None
    engine = PrivacyEngine(turnstile, dataset="faces", run="night-7", measure="renyi")
    users = task.users + 1 if special.get("other users") == rank else task.users
    arguments = {
        "users": users if special.get("users") else None,
        "population": 120,
        "target_epsilon": special.get("epsilon", 3.0),
        "target_delta": 1e-5,
        "epochs": 4,
        "max_grad_norm": 1.0,
        "max_physical_batch_size": 16,
        "max_examples_per_user": 4,
        "charge_ahead": special.get("ahead", False),
        "column": square_root_column(3) if special.get("turns") else None,
        "not_private_generator": np.random.default_rng(7),
    }
    module, optimizer, loader = engine.make_private_with_epsilon(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.5),
        data_loader=torch.utils.data.DataLoader(task.data, batch_size=40),
        **arguments | (special.get("on rank 1", {}) if rank else {}),
    )
    engine.check(lambda batch: task.loss_of(module, batch), task.made_up)
    batches = 0
    for _ in range(4):
        for batch in loader:
            assert len(batch[0]) == 16
            optimizer.zero_grad()
            task.loss_of(module, batch).backward()
            optimizer.step()
            batches += 1
    checkpoint = Checkpoint(out.with_name("checkpoint.npz"))
    save(checkpoint, module, optimizer)
    trained = [parameter.detach().clone() for parameter in module.parameters()]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert restore(checkpoint, module, optimizer)
    assert all(map(torch.equal, module.parameters(), trained))
    statement = engine.statement()
    assert (statement["steps"], statement["epsilon"]) == (12, engine.get_epsilon(1e-5))
    np.savez(
        out,
        batches=batches,
        noise=statement["noise_multiplier"],
        **{str(place): parameter.numpy() for place, parameter in enumerate(trained)},
    )


def main(meeting: str, rank: int, ranks: int, out: Path, special: dict[str, Any]) -> None:
    """Train on one of the ranks."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if ranks > 1 and not special.get("alone"):
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks
        )
    try:
        train(out, rank, special)
    except Exception as error:
        out.with_suffix(".error").write_text(type(error).__name__)
        os._exit(1)  # at a usual end gloo's threads may abort the process, if the other rank ended


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]), Path(sys.argv[4]), json.loads(sys.argv[5]))
