"""Train a PyTorch model under a budget per user. The training survives ``kill -9``.

    python train_pytorch.py    # needs the extra torch; run it again after a crash

``budgets.db`` has every charge. ``model.npz`` has the model, the optimizer and the last released
step. Both are in the current folder. Keep them: without ``budgets.db`` nothing knows what users
have spent. The step in which the process was killed stays charged and is skipped: its users were
drawn, and must not be drawn again.

To adapt it, replace ``examples_of_users`` and ``network``.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from streams import Turnstile
from streams.trainers import Checkpoint, PrivacyEngine
from streams.trainers.torch import restore, save

POPULATION = 1_000  # a public number of users; their true number is not public
FEATURES = 20


def examples_of_users(first: int, count: int) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    """Return the user of each example, features and labels: here three random ones per user."""
    users = np.repeat(np.arange(first, first + count), 3)
    features = np.random.default_rng(first).normal(size=(len(users), FEATURES))
    labels = features[:, 0] * features[:, 1] + features[:, 2] > 0
    return users, torch.tensor(features, dtype=torch.float32), torch.tensor(labels).long()


def network() -> torch.nn.Module:
    """Return the model to be trained. It must not mix examples, as batch normalisation does."""
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2)
    )


def main() -> None:
    """Train, or continue a training that was killed."""
    parser = argparse.ArgumentParser(description="Train under a budget per user.")
    parser.add_argument("--epochs", type=int, default=10, help="default: 10")
    epochs = parser.parse_args().epochs

    users, features, labels = examples_of_users(0, 990)
    model, criterion = network(), torch.nn.CrossEntropyLoss(reduction="none")
    engine = PrivacyEngine(Turnstile.open("budgets.db"), dataset="clicks", run="night-7")
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5),
        data_loader=torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(features, labels), batch_size=50
        ),
        users=users,
        population=POPULATION,
        target_epsilon=3.0,
        target_delta=1e-5,
        epochs=epochs,
        max_grad_norm=1.0,
    )
    # The gradient of an example must not depend on the others. Checked with examples of no user.
    made_up = [(torch.randn(FEATURES), torch.tensor(label)) for label in (0, 1, 1, 0, 1, 0)]
    engine.check(lambda batch: criterion(model(batch[0]), batch[1]).mean(), made_up)
    checkpoint = Checkpoint("model.npz")
    if restore(checkpoint, model, optimizer):
        print(f"continues after step {checkpoint.released()}", flush=True)
    while len(loader):  # the steps that are left
        for batch, targets in loader:
            optimizer.zero_grad()
            criterion(model(batch), targets).mean().backward()
            optimizer.step()
            if loader.is_last:  # a step with many drawn users comes in several batches
                save(checkpoint, model, optimizer)  # before anything of this step is published
                print(f"step {checkpoint.released()} is saved", flush=True)

    _, features, labels = examples_of_users(2_000, 1_000)  # users outside the dataset
    right = (model(features).argmax(dim=1) == labels).float().mean()
    print(f"{right:.0%} of other users' labels are right")
    print(engine.statement()["text"])


if __name__ == "__main__":
    main()
