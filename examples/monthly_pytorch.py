"""Train a PyTorch model every month on users who come and go, under one budget per user.

    python monthly_pytorch.py 2026-01    # needs the extra torch; run it again after a crash
    python monthly_pytorch.py 2026-02

``budgets.db`` has every charge of all months. ``model-MONTH.npz`` has the model, the optimizer and
the last released step of a month, for a restart. ``model-MONTH.pt`` has the parameters of the
finished model, from which a later month may start. They are in the current folder. Keep them.

A user's budget pays for TRAININGS trainings. A user who has been in so many is left out of every
later one. A new user has a whole budget. The numbers below are public and never change: the budget
depends on them, and a number that follows from the data would reveal some of it.

To adapt it, replace ``examples_of_month`` and ``network``.
"""

from __future__ import annotations

import argparse
from datetime import date

import numpy as np
import torch

from accounting import steps_noise_multiplier
from streams import Turnstile
from streams.trainers import Checkpoint, PrivacyEngine
from streams.trainers.torch import restore, save

EPSILON, DELTA = 3.0, 1e-5  # of every user, for the models of all months together
POPULATION = 1_000  # a public number of users in a month; their true number is not public
BATCH = 100  # users in a step, expected if there are POPULATION users
RATE = BATCH / POPULATION
STEPS = 50  # of one training
TRAININGS = 2  # that a user's budget pays for
FEATURES = 20


def examples_of_month(month: int) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    """Return the user of each example, features and labels: here two random ones per user.

    Every month 300 users leave, and some more or less come.
    """
    users = np.repeat(np.arange(300 * month, 300 * month + 900 + 40 * (month % 3)), 2)
    features = np.random.default_rng(month).normal(size=(len(users), FEATURES))
    labels = features[:, 0] + features[:, 1] > 0
    return users, torch.tensor(features, dtype=torch.float32), torch.tensor(labels).long()


def network() -> torch.nn.Module:
    """Return the model to be trained. It must not mix examples, as batch normalisation does."""
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
    )


def month_of(text: str) -> str:
    """Return a month of the command line, which names its run."""
    try:
        return date.fromisoformat(f"{text}-01").strftime("%Y-%m")
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no month such as 2026-01") from None


def train(turnstile: Turnstile, month: str) -> torch.nn.Module:
    """Return the model of the month. A training that was killed continues."""
    noise = steps_noise_multiplier(EPSILON, DELTA, sampling_rate=RATE, steps=TRAININGS * STEPS)
    turnstile.create_dataset(  # the first month creates it; the same call again changes nothing
        "clicks",
        measure="steps",
        epsilon=EPSILON,
        delta=DELTA,
        sampling_rate=RATE,
        noise_multiplier=noise,
    )
    year, of_year = map(int, month.split("-"))
    users, features, labels = examples_of_month(12 * (year - 2026) + of_year - 1)
    model, criterion = network(), torch.nn.CrossEntropyLoss(reduction="none")
    engine = PrivacyEngine(turnstile, dataset="clicks", run=month)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5),
        data_loader=torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(features, labels), batch_size=BATCH
        ),
        users=users,
        population=POPULATION,  # so the sampling rate is BATCH / POPULATION
        steps=STEPS,
        noise_multiplier=noise,
        max_grad_norm=1.0,
    )
    # The gradient of an example must not depend on the others. Checked with examples of no user.
    made_up = [(torch.randn(FEATURES), torch.tensor(label)) for label in (0, 1, 1, 0, 1, 0)]
    engine.check(lambda batch: criterion(model(batch[0]), batch[1]).mean(), made_up)
    checkpoint = Checkpoint(f"model-{month}.npz")
    if restore(checkpoint, model, optimizer):
        print(f"continues after step {checkpoint.released()}", flush=True)
    while len(loader):  # the steps that are left
        for batch, targets in loader:
            optimizer.zero_grad()
            criterion(model(batch), targets).mean().backward()
            optimizer.step()
            if loader.is_last:  # a step with many drawn users comes in several batches
                save(checkpoint, model, optimizer)  # before anything of this step is published
    torch.save(model._module.state_dict(), f"model-{month}.pt")
    turnstile.close_run("clicks", month)  # one training at a time charges a dataset
    print(engine.statement(DELTA)["text"])
    return model


def main() -> None:
    """Train the model of one month."""
    parser = argparse.ArgumentParser(description="Train a month's model under a budget per user.")
    parser.add_argument("month", type=month_of, help="of the training, such as 2026-01")
    month = parser.parse_args().month
    with Turnstile.open("budgets.db") as turnstile:
        model = train(turnstile, month)
    _, features, labels = examples_of_month(1_000)  # users outside the dataset
    right = (model(features).argmax(dim=1) == labels).float().mean()
    print(f"{right:.0%} of other users' labels are right")


if __name__ == "__main__":
    main()
