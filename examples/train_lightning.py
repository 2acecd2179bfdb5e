"""Train with PyTorch Lightning under a budget per user. The training survives ``kill -9``.

    python train_lightning.py    # needs the extra torch, and lightning; run it again after a crash

One ``training_step`` is one charged step: it draws the users, goes through all batches of the step,
updates the model and saves it. Lightning sees the number of the step only. So steps, callbacks and
progress follow public numbers, whatever the number of drawn users. Both files are needed after a
crash, as in ``train_pytorch.py``: ``budgets.db`` and ``model.npz``.
"""

from __future__ import annotations

from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from streams import Turnstile
from streams.trainers import Checkpoint, PrivacyEngine
from streams.trainers.torch import restore, save

POPULATION, STEPS = 1_000, 100  # a public number of users, and the planned number of steps


class PrivateTraining(lightning.LightningModule):
    """Trains what ``PrivacyEngine`` made private, with ``steps=`` and ``Trainer(max_epochs=1)``."""

    def __init__(self, model: Any, optimizer: Any, loader: Any, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.automatic_optimization = False  # Lightning then rejects clipping and accumulation
        self.model, self.private, self.loader, self.file = model, optimizer, loader, checkpoint
        restore(checkpoint, model, optimizer)

    def configure_optimizers(self) -> Any:
        """Return the private optimizer, and a schedule that follows the run after a crash, too."""
        schedule = torch.optim.lr_scheduler.LambdaLR(
            self.private, lambda _: 1.0 - self.loader.private.step / STEPS
        )
        return [self.private], [schedule]

    def on_fit_start(self) -> None:
        """Reject settings for which this training was not tested."""
        usual = isinstance(self.trainer.strategy, SingleDeviceStrategy)
        if not usual or self.trainer.precision != "32-true" or self.trainer.ckpt_path is not None:
            raise ValueError("give devices=1, precision='32-true' and no ckpt_path")

    def train_dataloader(self) -> range:
        """Return the numbers of the steps that are left. Nothing is charged or drawn here."""
        return range(len(self.loader))

    def on_train_epoch_start(self) -> None:
        """Begin the loader's only pass."""
        self.batches = iter(self.loader)

    def training_step(self, _: int) -> None:
        """Charge a step, release it and save it. The loss is not returned: it is not covered."""
        for batch in self.batches:
            self.private.zero_grad()
            loss_of(self.model, batch).backward()
            if self.loader.is_last:
                break
            self.private.step()  # adds up; the step goes on in another batch
        self.optimizers().step()  # once per step: Lightning counts it
        self.lr_schedulers().step()
        save(self.file, self.model, self.private)  # before callbacks and loggers see the step

    def validation_step(self, batch: Any) -> None:
        """Log the accuracy on users outside the dataset."""
        right = (self.model(batch[0]).argmax(dim=1) == batch[1]).float().mean()
        self.log("accuracy", right, prog_bar=True)


def loss_of(model: Any, batch: Any) -> Any:
    """Return the mean over examples of the loss of each."""
    loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return loss.mean()


def examples_of_users(first: int, count: int) -> tuple[np.ndarray, Any]:
    """Return the user of each example, and the examples: three random ones per user."""
    users = np.repeat(np.arange(first, first + count), 3)
    features = np.random.default_rng(first).normal(size=(len(users), 20))
    labels = features[:, 0] + features[:, 2] > 0
    tensors = torch.tensor(features, dtype=torch.float32), torch.tensor(labels).long()
    return users, torch.utils.data.TensorDataset(*tensors)


def private_training(turnstile: Turnstile, **settings: Any) -> PrivateTraining:
    """Make a training private; its budget lasts for the planned steps."""
    users, dataset = examples_of_users(0, 990)
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    engine = PrivacyEngine(turnstile, dataset="clicks", run="night-7")
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5),
        data_loader=torch.utils.data.DataLoader(dataset, batch_size=50),
        users=users,
        population=POPULATION,
        target_epsilon=3.0,
        target_delta=1e-5,
        steps=STEPS,
        max_grad_norm=1.0,
        **settings,
    )
    # The gradient of an example must not depend on the others. Checked with examples of no user.
    made_up = [(torch.randn(20), torch.tensor(label)) for label in (0, 1, 1, 0, 1, 0)]
    engine.check(lambda batch: loss_of(model, batch), made_up)
    return PrivateTraining(model, optimizer, loader, Checkpoint("model.npz"))


if __name__ == "__main__":
    _, others = examples_of_users(2_000, 1_000)
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=1, val_check_interval=20)
    trainer.fit(
        private_training(Turnstile.open("budgets.db")),
        val_dataloaders=torch.utils.data.DataLoader(others, batch_size=3_000),
    )
