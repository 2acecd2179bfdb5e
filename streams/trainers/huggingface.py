"""A Hugging Face ``Trainer`` whose training is private for every user.

    trainer = HuggingFaceTrainer(
        model=model, args=args, train_dataset=dataset, data_collator=default_data_collator,
        engine=PrivacyEngine(turnstile, dataset="reviews", run="night-7"), users=user_ids,
        target_epsilon=3.0, target_delta=1e-5,
    )
    trainer.train()

One step of the ``Trainer`` is one charged step: learning-rate schedules, logging and saving follow
public numbers. ``args`` sets the rest: ``max_grad_norm`` is the clip norm of a user's gradient,
``per_device_train_batch_size`` times ``gradient_accumulation_steps`` is the expected number of
examples in a step, and the former is the number of examples that are computed at once.

The training loss is not logged, because it is a release that is not charged. Evaluation on other
data is as usual.

Examples must be padded to one length (``padding="max_length"``): padding to the longest example of
a batch makes the gradient of a user depend on the other users' examples. Where a model shares
``position_ids`` between examples, as BERT and GPT-2 do, add them to each example. transformers and
accelerate are the extra ``huggingface``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.utils.data import DataLoader
from transformers import Trainer

from streams.sdk.errors import InvalidRequest
from streams.trainers.loader import IndividualDPLoader
from streams.trainers.ranks import rank_and_ranks
from streams.trainers.torch import PrivacyEngine

_RELEASED_ONLY: Final = ("loss", "train_loss", "grad_norm")


class HuggingFaceTrainer(Trainer):
    """``transformers.Trainer``, charged step by step.

    Args:
        engine: of this training.
        target_epsilon: with target_delta, the guarantee of every user.
        target_delta: see target_epsilon.
        users: (examples,), the user of each example of ``train_dataset``; by default each example
            has its own user.
        settings: other arguments of ``PrivacyEngine.make_private_with_epsilon``.
        arguments: of ``Trainer``, by name.

    Raises:
        InvalidRequest: the arguments are invalid, or the run has been trained before; no user was
            charged.
    """

    optimizer: Any

    def __init__(
        self,
        *,
        engine: PrivacyEngine,
        target_epsilon: float,
        target_delta: float,
        users: Any = None,
        settings: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        args = self.args
        self._check()
        at_once, accumulated = args.per_device_train_batch_size, args.gradient_accumulation_steps
        source: DataLoader[Any] = DataLoader(
            self._columns(self.train_dataset),
            batch_size=at_once * accumulated,
            collate_fn=self._collator(),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            prefetch_factor=args.dataloader_prefetch_factor,
        )
        whole = args.max_steps <= 0
        if whole and args.num_train_epochs != int(args.num_train_epochs):
            raise InvalidRequest(
                f"num_train_epochs is {args.num_train_epochs}; give a whole number, or max_steps"
            )
        self.create_optimizer()
        self.engine = engine
        self.model_wrapped, self.optimizer, loader = engine.make_private_with_epsilon(
            module=self.model,
            optimizer=self.optimizer,
            data_loader=source,
            users=users,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            epochs=int(args.num_train_epochs) if whole else None,
            steps=None if whole else args.max_steps,
            max_grad_norm=args.max_grad_norm,
            max_physical_batch_size=at_once,
            **(settings or {}),
        )
        if loader.private.step:
            raise InvalidRequest(
                f"the run has made {loader.private.step} steps already: open a run of another name"
            )
        self._loader = loader
        # A charged step is one step here; its gradient is clipped by user, and private already.
        args.gradient_accumulation_steps, args.max_grad_norm = 1, 0.0

    def get_train_dataloader(self) -> Any:
        """Return the charged steps, each with its batches."""
        return LoaderSteps(self._loader)

    def train(self, resume_from_checkpoint: Any = None, **arguments: Any) -> Any:
        """Train, as ``Trainer.train`` does.

        Raises:
            InvalidRequest: ``resume_from_checkpoint`` was given.
        """
        if resume_from_checkpoint:
            raise InvalidRequest(
                "resume_from_checkpoint is not possible: steps after the checkpoint stay charged, "
                "and must not be made again. Begin a run of another name with the saved model"
            )
        return super().train(**arguments)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Charge a step, and add up all its batches but the last, which the caller releases.

        The loss is not returned, because it must not be published.
        """
        for batch in inputs:
            super().training_step(model, batch)
            if self._loader.is_last:
                break
            self.optimizer.step()
            model.zero_grad()
        return torch.zeros((), device=self.args.device)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the number of operations depends on the drawn users."""
        return 0

    def log(self, logs: dict[str, float], *arguments: Any, **named: Any) -> None:
        """Log everything but what is computed from training data."""
        public = {name: value for name, value in logs.items() if name not in _RELEASED_ONLY}
        super().log(public, *arguments, **named)

    def _check(self) -> None:
        args = self.args
        if self.train_dataset is None:
            raise InvalidRequest("train_dataset is missing")
        if rank_and_ranks()[1] > 1 or args.n_gpu > 1 or args.world_size > 1:
            raise InvalidRequest(
                "this trainer runs on one process and one device: use PrivacyEngine with a loop of "
                "your own for several"
            )
        for name in ("auto_find_batch_size", "fp16", "group_by_length"):
            if getattr(args, name, False):
                raise InvalidRequest(f"{name} is True; a private training needs {name}=False")
        if args.include_num_input_tokens_seen not in (False, "no"):
            raise InvalidRequest("include_num_input_tokens_seen counts private data: leave it out")

    def _columns(self, dataset: Any) -> Any:
        return self._remove_unused_columns(dataset) if hasattr(dataset, "column_names") else dataset

    def _collator(self) -> Any:
        if hasattr(self.train_dataset, "column_names"):
            return self.data_collator
        return self._get_collator_with_removed_columns(self.data_collator)


class Batches:
    """The batches of one step, of which nothing is known before it is charged."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def __contains__(self, column: object) -> bool:
        """Return False: ``Trainer`` looks for labels in order to count them."""
        return False


class LoaderSteps:
    """The steps of a loader, each with its batches."""

    def __init__(self, loader: IndividualDPLoader) -> None:
        self._loader = loader
        self.dataset = loader.dataset

    def __len__(self) -> int:
        """Return the number of steps in the next pass."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Batches]:
        batches = iter(self._loader)
        for _ in range(len(self._loader)):
            yield Batches(batches)
