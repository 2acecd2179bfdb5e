"""Individual accounting for PyTorch, with the names and habits of Opacus.

    module, optimizer, loader = make_private(
        module=module, optimizer=optimizer, dataset=dataset, run=run, users=user_ids,
        noise_multiplier=1.1, max_grad_norm=1.0, sampling_rate=0.01,
    )
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            criterion(module(images), labels).backward()
            optimizer.step()

The loader charges a step and draws its users; the optimizer clips, adds noise and updates the
parameters. Gradients by example come from Opacus's ``GradSampleModule``. Its validator rejects
modules that it cannot handle, such as batch normalisation. The loss and the accuracy on training
data are releases that are not charged: do not publish them.

The contribution of a user must not depend on which other users were drawn:

- **Every batch has the same number of examples.** The drawn users' examples are filled up with
  copies, whose gradients are dropped; more of them come in several batches. Libraries round the
  gradient of an example differently in a batch of another size.
- **Dropout and augmentation follow the operating system's randomness while a step is open.** With
  a known seed the mask of an example would reveal its place in the batch, and so which other users
  were drawn. Afterwards the generators of PyTorch, NumPy and Python continue from their state
  before the step.

With ``grad_sample_mode="ghost"`` the gradients of linear layers are not written out. Opacus's ghost
clipping computes norms and sums in float32, which bounds no contribution for certain; here both are
exact (``streams.trainers.sums``), in one backward pass. It applies to linear layers in float32
that see one row per example, in trainings without ``users``. All other gradients are written
out.

PyTorch and Opacus are the extra ``torch``.
"""

from __future__ import annotations

import io
import math
import random
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.optimizers.utils import params
from opacus.validators import ModuleValidator
from torch.utils.data import (
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from streams.sdk.errors import InvalidRequest
from streams.sdk.run import Run
from streams.trainers.checkpoint import Checkpoint
from streams.trainers.cohorts import check_sampling
from streams.trainers.examples import ExamplesByUser, SumsByUser
from streams.trainers.ghost import GhostModule, PrivateModule, mark_weights, part_of
from streams.trainers.planning import Schedule
from streams.trainers.steps import Levels, OpenStep, PrivateSteps

_CONTENT: Final = "content"
_MULTIPLE: Final = 8  # batch sizes are multiples of this


def make_private(
    *,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    run: Run,
    noise_multiplier: Schedule,
    max_grad_norm: float,
    sampling_rate: float,
    population: float,
    users: Any = None,
    steps: int | None = None,
    levels: Levels | None = None,
    highest_level: float = 1.0,
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
        dataset: has a length and is indexed by position, as ``TensorDataset``.
        run: from ``Turnstile.run``.
        noise_multiplier: the noise, as a multiple of ``max_grad_norm``; may be a schedule.
        max_grad_norm: the norm that a user's gradient, summed over its examples, is clipped to:
            every user can afford it in every planned step.
        sampling_rate: the rate at which each user is drawn.
        population: a public number of users: a round figure, or a count that was released
            privately. ``sampling_rate`` times this number is the denominator of every release. The
            number of users in the data is not public: neighbouring datasets differ in it.
        users: (examples,), the user of each example; by default each example has its own user.
        steps: the planned steps, at which the loader ends, those before a restart included; by
            default every pass over the loader has 1 / ``sampling_rate`` steps, as with Opacus.
        levels: as for ``PrivateSteps``.
        highest_level: as for ``PrivateSteps``.
        charge_ahead: charge the next step of a pass over the loader while the current one is
            computed (``PrivateSteps.begin``).
        max_physical_batch_size: the number of examples in every batch. A step with more examples is
            split into several batches, and the optimizer updates the parameters with the last one.
            By default most steps of users with one example fit in one batch.
        grad_sample_mode: as in Opacus: "hooks", or "ghost" to write out no gradients of linear
            layers.
        collate_fn: makes a batch of examples.
        batch_first: as in Opacus.
        loss_reduction: as in Opacus: "mean" or "sum", over the batch.
        poisson_sampling: must be True.
        data_loader: must be None: the batches of a loader are not Poisson samples. Pass its
            dataset.
        not_private_generator: draws coins and noise, for tests. A party that knows its seed knows
            the noise.

    Raises:
        InvalidRequest: the arguments are invalid; no user was enrolled.
        opacus.validators.errors.UnsupportedModuleError: the module mixes examples.
    """
    if data_loader is not None:
        check_sampling(_sampling_of(data_loader))
    if not poisson_sampling:
        check_sampling("shuffled")
    if loss_reduction not in ("mean", "sum"):
        raise InvalidRequest(f"loss_reduction is {loss_reduction!r}; it must be 'mean' or 'sum'")
    if max_physical_batch_size is not None and max_physical_batch_size < 1:
        raise InvalidRequest(
            f"max_physical_batch_size is {max_physical_batch_size}; it must be at least 1"
        )
    if grad_sample_mode not in ("hooks", "ghost"):
        raise InvalidRequest(
            f"grad_sample_mode is {grad_sample_mode!r}; it must be 'hooks' or 'ghost'"
        )
    ModuleValidator.validate(module, strict=True)
    if not 0 < population < math.inf:
        raise InvalidRequest(f"population is {population}; it must be finite and positive")
    kind, ghosts = PrivateModule, set[int]()
    examples = ExamplesByUser.one_each(len(dataset)) if users is None else ExamplesByUser.of(users)
    examples.check_covers(len(dataset))
    expected = sampling_rate * population
    if grad_sample_mode == "ghost":
        kind, ghosts = GhostModule, mark_weights(module, params(optimizer))
    private = PrivateSteps(
        run,
        examples.users,
        clip_norm=max_grad_norm,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        expected_batch=expected,
        steps=steps,
        levels=levels,
        highest_level=highest_level,
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
        max_physical_batch_size or _usual_size(expected),
        charge_ahead,
        is_private=not_private_generator is None,
    )
    wrapped = kind(module, batch_first=batch_first, loss_reduction=loss_reduction)
    scale = 1.0 if loss_reduction == "mean" else expected
    made = IndividualDPOptimizer(optimizer, private, loader, scale, one_each=users is None)
    return wrapped, made, loader


def save(checkpoint: Checkpoint, module: torch.nn.Module, optimizer: IndividualDPOptimizer) -> None:
    """Save module and optimizer with the released step, before anything of the step is
    published.
    """
    content = io.BytesIO()
    torch.save((module.state_dict(), optimizer.state_dict()), content)
    optimizer.private.save(
        checkpoint, {_CONTENT: np.frombuffer(content.getvalue(), dtype=np.uint8)}
    )


def restore(
    checkpoint: Checkpoint, module: torch.nn.Module, optimizer: IndividualDPOptimizer
) -> bool:
    """Restore module and optimizer from the checkpoint; return False if there is none.

    Raises:
        ReleasedTwice: the next step of the run was released before.
        InvalidRequest: the file is not a checkpoint of this run.
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
    """Batches of the drawn users' examples. A charged step is one batch or several."""

    def __init__(
        self,
        private: PrivateSteps,
        examples: ExamplesByUser,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any],
        steps: int | None,
        sampling_rate: float,
        batch_size: int,
        charge_ahead: bool,
        *,
        is_private: bool,
    ) -> None:
        self.private = private
        self.dataset = dataset
        self.batch_size = batch_size
        self._examples, self._collate = examples, collate_fn
        self._steps, self._epoch = steps, max(1, round(1.0 / sampling_rate))
        self._ahead, self._is_private = charge_ahead, is_private
        self._places: slice | None = None
        self.is_last = True
        self.randomness = Randomness()
        self.sums = SumsByUser(np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        """Return the number of steps in one pass."""
        return self._epoch if self._steps is None else max(0, self._steps - self.private.step)

    def __iter__(self) -> Iterator[Any]:
        end = self.private.step + len(self)
        while self.private.step < end:
            step = self.private.begin(ahead=self._ahead and self.private.step + 1 < end)
            chosen = self._examples.select(step.positions)
            self.sums = SumsByUser(chosen.counts)
            count = len(chosen.examples)
            if self._is_private:
                self.randomness.hide()
            for start in range(0, max(count, 1), self.batch_size):
                self._places = slice(start, min(start + self.batch_size, count))
                self.is_last = self._places.stop == count
                yield self._batch(chosen.examples[self._places])
                if self._places is not None:
                    raise InvalidRequest(
                        "optimizer.step() was not called for the last batch: iterate again, which "
                        "repeats the step with the same users"
                    )

    def take(self) -> tuple[OpenStep, slice]:
        """Return the step of the last batch, and the places of its examples in the step, once."""
        step = self.private.open_step
        if self._places is None or step is None:
            raise InvalidRequest("no batch of the loader is waiting for optimizer.step()")
        places, self._places = self._places, None
        return step, places

    def _batch(self, examples: NDArray[np.int64]) -> Any:
        """Collate examples, padded with copies of the last one, or of any, to the batch size."""
        missing = self.batch_size - len(examples)
        if type(self.dataset) is TensorDataset and self._collate is default_collate:
            # Index the tensors once instead of collating single examples.
            last = examples[-1:] if len(examples) else np.zeros(1, dtype=np.int64)
            places = torch.from_numpy(np.concatenate([examples, np.repeat(last, missing)]))
            return [tensor[places] for tensor in self.dataset.tensors]
        taken = [self.dataset[place] for place in examples.tolist()] or [self.dataset[0]]
        return self._collate([*taken, *[taken[-1]] * (self.batch_size - len(taken))])


class IndividualDPOptimizer(DPOptimizer):
    """Opacus's optimizer, with the charged level of each user instead of one norm for all."""

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
        """Clip and add up this batch; if it completes the step, add noise once and update.

        Raises:
            InvalidRequest: there was no batch, or its gradients are not of one pass over it.
        """
        step, places = self._loader.take()
        count = places.stop - places.start
        if count and self._one_each:
            step.add(self._parts(count), places)
        elif count:
            users, sums = self._loader.sums.add(self._parts(count))
            if users.stop > users.start:
                step.add(sums, users)
        self._is_last_step_skipped = not self._loader.is_last
        if not self._loader.is_last:
            return False
        sizes = [parameter.numel() for parameter in self.params]
        flat = step.release(sizes) * self._scale
        self._loader.randomness.restore()
        for parameter, part in zip(self.params, np.split(flat, np.cumsum(sizes)[:-1]), strict=True):
            found = torch.as_tensor(part, dtype=parameter.dtype, device=parameter.device)
            parameter.grad = found.view_as(parameter)
        return True

    def _parts(self, count: int) -> list[Any]:
        """Return the gradients of the first examples of the batch, one part per parameter."""
        samples, size = self.grad_samples, self._loader.batch_size
        if {len(sample) for sample in samples} != {size}:
            raise InvalidRequest(
                f"there are {len(samples[0])} gradients for a batch of {size} examples: compute "
                "the loss of a batch once, and call zero_grad before it"
            )
        return [
            part_of(parameter, sample, count, as_factors=self._one_each)
            for parameter, sample in zip(self.params, samples, strict=True)
        ]


class Randomness:
    """The generators that masks and augmentations draw from: PyTorch's, NumPy's and Python's.

    While they are hidden, the mask of an example is independent of its place in the batch, even
    for a party that knows the seeds set by the caller.
    """

    def __init__(self) -> None:
        self._kept: list[Callable[[], object]] = []  # restore the generators

    def hide(self) -> None:
        """Seed the generators from the operating system, unless they are hidden already."""
        if self._kept:
            return
        self._kept = [
            partial(torch.set_rng_state, torch.get_rng_state()),
            partial(random.setstate, random.getstate()),
            partial(np.random.set_state, np.random.get_state()),
        ]
        if torch.cuda.is_available():
            restore = partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
            self._kept.append(restore)
        torch.manual_seed(secrets.randbits(63))
        random.seed(secrets.randbits(256))
        np.random.seed(np.frombuffer(secrets.token_bytes(32), dtype=np.uint32))

    def restore(self) -> None:
        """Restore the generators' state before ``hide``."""
        while self._kept:
            self._kept.pop()()


def _usual_size(expected: float) -> int:
    """Return a public batch size in which nearly all Poisson samples of this mean size fit."""
    return _MULTIPLE * math.ceil((expected + 4.0 * math.sqrt(expected)) / _MULTIPLE)


def _sampling_of(data_loader: Any) -> str:
    """Return the name of a loader's way to draw batches."""
    sampler = getattr(data_loader, "sampler", None)
    if isinstance(sampler, WeightedRandomSampler):
        return "weighted"
    return "shuffled" if isinstance(sampler, RandomSampler) else "fixed"
