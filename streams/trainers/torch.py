"""Individual accounting for PyTorch, with the names and habits of Opacus.

    module, optimizer, loader = make_private(
        module=module, optimizer=optimizer, dataset=dataset, run=run, user_ids=user_ids,
        noise_multiplier=1.1, max_grad_norm=1.0, sampling_rate=0.01,
    )
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            criterion(module(images), labels).backward()
            optimizer.step()

The loader charges a step and draws its users; the optimizer clips, adds noise and moves. Gradients
by example are those of Opacus's ``GradSampleModule``, so what Opacus cannot take, as batch
normalisation, is refused by its validator. A batch may be empty. The loss and the accuracy on
training data are releases that nobody charges: look at them, and do not show them.

With ``grad_sample_mode="ghost"`` the gradients of linear layers are not written out. Opacus's ghost
clipping finds norms and adds up in float32, so that no contribution is certain to be within what
was charged; here both are exact (``streams.trainers.outer``), in one backward pass. It is for
linear layers in float32 that see one row an example, and for trainings without ``user_ids``; all
others are written out as ever. Where memory is short nevertheless, ``max_physical_batch_size``
works a batch in parts.

PyTorch and Opacus are the extra ``torch``.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.optimizers.utils import params
from opacus.validators import ModuleValidator
from torch.utils._pytree import tree_map
from torch.utils.data import (
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from streams.sdk.errors import InvalidRequest
from streams.trainers.batching import check_sampling
from streams.trainers.checkpoint import Checkpoint
from streams.trainers.examples import ExamplesByUser, Selection
from streams.trainers.ghost import GhostModule, PrivateModule, mark_weights, part_of
from streams.trainers.pacing import Pace
from streams.trainers.rosters import TrainingRun
from streams.trainers.steps import OpenStep, PrivateSteps, Schedule
from streams.trainers.sums import Part

_CONTENT = "content"


def make_private(
    *,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    run: TrainingRun,
    noise_multiplier: Schedule,
    max_grad_norm: float,
    sampling_rate: float,
    user_ids: Any = None,
    population: float | None = None,
    steps: int | None = None,
    levels: int = 100,
    own_coins: bool = True,
    pace: Pace | None = None,
    charge_ahead: bool = False,
    max_physical_batch_size: int | None = None,
    grad_sample_mode: str = "hooks",
    collate_fn: Callable[[list[Any]], Any] = default_collate,
    batch_first: bool = True,
    loss_reduction: str = "mean",
    poisson_sampling: bool = True,
    data_loader: Any = None,
    not_private_generator: np.random.Generator | None = None,
) -> tuple[GradSampleModule, IndividualDPOptimizer, IndividualDPLoader]:
    """Make a training private for every user, charged step by step.

    Neighbouring datasets differ by adding or removing one user, with all its examples.

    Args:
        module: to be trained, in training mode.
        optimizer: of its parameters.
        dataset: with ``len`` and places, as ``TensorDataset``.
        run: of ``Turnstile.run``.
        noise_multiplier: the noise, as a multiple of ``max_grad_norm``; a schedule may change it.
        max_grad_norm: no gradient of a user, summed over its examples, is longer.
        sampling_rate: with which a user is drawn.
        user_ids: whose example is which; by default everybody has one.
        population: a public number of users, times ``sampling_rate`` the denominator; by default
            that in the data, which is taken to be public.
        steps: at which the loader ends, those before a restart included; by default every pass
            over the loader has 1 / ``sampling_rate`` steps, as with Opacus.
        levels: of norms up to ``max_grad_norm``.
        own_coins: whether norms that were seen become levels.
        pace: keeps levels to what lasts until the end.
        charge_ahead: have the next step of a pass over the loader decided while this one is
            computed (``PrivateSteps.begin``).
        max_physical_batch_size: how many examples the loader gives at a time, users kept together;
            the optimizer moves when the step is complete.
        grad_sample_mode: as in Opacus: "hooks", or "ghost" to write out no gradients of linear
            layers.
        collate_fn: makes a batch of examples.
        batch_first: as in Opacus.
        loss_reduction: as in Opacus: "mean" or "sum", over the batch.
        poisson_sampling: True. Other batches are refused.
        data_loader: none. The batches of a loader are not Poisson samples; give its dataset.
        not_private_generator: of coins and noise, for tests. Whoever knows its seed knows the
            noise.

    Raises:
        InvalidRequest: arguments that cannot be used; nobody was enrolled.
        opacus.validators.errors.UnsupportedModuleError: the module mixes examples.
    """
    if data_loader is not None:
        check_sampling(_sampling_of(data_loader))
    if not poisson_sampling:
        check_sampling("shuffled")
    if loss_reduction not in ("mean", "sum"):
        raise InvalidRequest(f"loss_reduction is {loss_reduction!r}; it must be 'mean' or 'sum'")
    if max_physical_batch_size is not None and max_physical_batch_size < 1:
        raise InvalidRequest("max_physical_batch_size must be at least 1")
    if grad_sample_mode not in ("hooks", "ghost"):
        raise InvalidRequest(
            f"grad_sample_mode is {grad_sample_mode!r}; it must be 'hooks' or 'ghost'"
        )
    ModuleValidator.validate(module, strict=True)
    kind, ghosts = PrivateModule, set[int]()
    examples = (
        ExamplesByUser.one_each(len(dataset)) if user_ids is None else ExamplesByUser.of(user_ids)
    )
    examples.check_covers(len(dataset))
    expected = sampling_rate * (len(examples) if population is None else population)

    def noise_stddev(step: int) -> float:
        multiple = noise_multiplier(step) if callable(noise_multiplier) else noise_multiplier
        return multiple * max_grad_norm

    if grad_sample_mode == "ghost":
        kind, ghosts = GhostModule, mark_weights(module, params(optimizer))
    private = PrivateSteps(
        run,
        examples.users,
        clip_norm=max_grad_norm,
        noise_stddev=noise_stddev,
        sampling_rate=sampling_rate,
        expected_batch=expected,
        levels=levels,
        own_coins=own_coins,
        pace=pace,
        outer_parts=ghosts,
        not_private_generator=not_private_generator,
    )
    loader = IndividualDPLoader(
        private,
        examples,
        dataset,
        collate_fn,
        steps,
        sampling_rate,
        max_physical_batch_size,
        charge_ahead,
    )
    wrapped = kind(module, batch_first=batch_first, loss_reduction=loss_reduction)
    scale = 1.0 if loss_reduction == "mean" else expected
    made = IndividualDPOptimizer(optimizer, private, loader, scale, one_each=user_ids is None)
    return wrapped, made, loader


def save(checkpoint: Checkpoint, module: torch.nn.Module, optimizer: IndividualDPOptimizer) -> None:
    """Write down module and optimizer with the step that was released, before anybody sees them."""
    content = io.BytesIO()
    torch.save((module.state_dict(), optimizer.state_dict()), content)
    optimizer.private.save(
        checkpoint, {_CONTENT: np.frombuffer(content.getvalue(), dtype=np.uint8)}
    )


def restore(
    checkpoint: Checkpoint, module: torch.nn.Module, optimizer: IndividualDPOptimizer
) -> bool:
    """Go on from what was saved; False if nothing was.

    Raises:
        ReleasedTwice: the run hands out a step that was released.
        InvalidRequest: it is no checkpoint of this run.
    """
    saved = optimizer.private.resume(checkpoint)
    if saved is None:
        return False
    content = io.BytesIO(saved.arrays[_CONTENT].tobytes())
    of_module, of_optimizer = torch.load(content, weights_only=True)
    module.load_state_dict(of_module)
    optimizer.load_state_dict(of_optimizer)
    return True


class IndividualDPLoader:
    """Batches of the users who were drawn; every one, or every row of parts, is a charged step."""

    def __init__(
        self,
        private: PrivateSteps,
        examples: ExamplesByUser,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any],
        steps: int | None,
        sampling_rate: float,
        examples_at_once: int | None,
        charge_ahead: bool,
    ) -> None:
        self.private = private
        self.dataset = dataset
        self._examples, self._collate = examples, collate_fn
        self._steps, self._epoch = steps, max(1, round(1.0 / sampling_rate))
        self._at_once, self._ahead = examples_at_once, charge_ahead
        self.places: slice | None = None
        self.is_last = True
        self._chosen = examples.select(np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        """Steps of one pass."""
        return self._epoch if self._steps is None else max(0, self._steps - self.private.step)

    def __iter__(self) -> Iterator[Any]:
        end = self.private.step + len(self)
        while self.private.step < end:
            step = self.private.begin(ahead=self._ahead and self.private.step + 1 < end)
            at_once = self._at_once or max(1, len(self._examples.order))
            parts = self._examples.parts(step.positions, at_once) or [slice(0, 0)]
            for places in parts:
                self.places, self.is_last = places, places is parts[-1]
                self._chosen = self._examples.select(step.positions[places])
                yield self._batch(self._chosen.examples)
                if self.places is not None:
                    raise InvalidRequest(
                        "optimizer.step() was not called for the last batch: iterate again, which "
                        "begins with the same users"
                    )

    def take(self) -> tuple[OpenStep, slice, Selection]:
        """Of which step and which users the last batch was, once."""
        step = self.private.open_step
        if self.places is None or step is None:
            raise InvalidRequest("no batch of the loader is waiting for optimizer.step()")
        places, self.places = self.places, None
        return step, places, self._chosen

    def _batch(self, chosen: NDArray[np.int64]) -> Any:
        if type(self.dataset) is TensorDataset and self._collate is default_collate:
            # The same, without taking every example out by itself.
            places = torch.from_numpy(chosen)
            return [tensor[places] for tensor in self.dataset.tensors]
        if len(chosen):
            return self._collate([self.dataset[place] for place in chosen.tolist()])
        return tree_map(_none_of, self._collate([self.dataset[0]]))


class IndividualDPOptimizer(DPOptimizer):
    """Opacus's optimizer, with levels that were charged in the place of one norm for all."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        private: PrivateSteps,
        loader: IndividualDPLoader,
        scale: float,
        one_each: bool,
    ) -> None:
        super().__init__(optimizer, noise_multiplier=0.0, max_grad_norm=0.0, expected_batch_size=1)
        self.private = private
        self._loader, self._scale, self._one_each = loader, scale, one_each

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Clip and add up this batch; if it completes the step, add noise once and go on.

        Raises:
            InvalidRequest: there was no batch, or its gradients are not of one pass over it.
        """
        step, places, chosen = self._loader.take()
        if len(chosen.counts):
            step.add(self._rows(chosen), places)
        self._is_last_step_skipped = not self._loader.is_last
        if not self._loader.is_last:
            return False
        sizes = [parameter.numel() for parameter in self.params]
        flat = step.release(sizes) * self._scale
        for parameter, part in zip(self.params, np.split(flat, np.cumsum(sizes)[:-1]), strict=True):
            found = torch.as_tensor(part, dtype=parameter.dtype, device=parameter.device)
            parameter.grad = found.view_as(parameter)
        return True

    def _rows(self, chosen: Selection) -> list[Part]:
        """The gradient of each user, one part a parameter."""
        samples = self.grad_samples
        if {len(sample) for sample in samples} != {len(chosen.examples)}:
            raise InvalidRequest(
                f"{len(samples[0])} gradients for {len(chosen.examples)} examples: compute the "
                "loss of a batch once, and call zero_grad before it"
            )
        return [
            part_of(parameter, sample, chosen, self._one_each)
            for parameter, sample in zip(self.params, samples, strict=True)
        ]


def _sampling_of(data_loader: Any) -> str:
    """What kind of batches a loader makes."""
    sampler = getattr(data_loader, "sampler", None)
    if isinstance(sampler, WeightedRandomSampler):
        return "weighted"
    return "shuffled" if isinstance(sampler, RandomSampler) else "fixed"


def _none_of(leaf: Any) -> Any:
    return leaf[:0] if isinstance(leaf, torch.Tensor) else leaf
