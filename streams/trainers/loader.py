"""Batches for PyTorch: the drawn users' examples, in batches of one size.

A ``DataLoader`` of the caller says where examples come from and how they are put together. Its
batches are replaced by Poisson samples of users.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.distributed import DistributedSampler

from streams.sdk.errors import InvalidRequest
from streams.trainers.examples import ExamplesByUser, SumsByUser
from streams.trainers.ranks import RankedSteps
from streams.trainers.steps import OpenStep, PrivateSteps


def check_loader(data_loader: Any) -> None:
    """Check that the batches of a loader can be replaced by Poisson samples of its dataset.

    Raises:
        InvalidRequest: its examples are not addressed by index, or its sampler chooses among them.
    """
    if not isinstance(data_loader, DataLoader):
        raise InvalidRequest(
            f"data_loader has type {type(data_loader).__name__}; it must be a "
            "torch.utils.data.DataLoader, as it was before make_private"
        )
    if isinstance(data_loader.dataset, IterableDataset):
        raise InvalidRequest(
            "the dataset of data_loader is an IterableDataset, from which no user can be drawn: "
            "use one with __getitem__ and __len__"
        )
    if len(data_loader.dataset) == 0:  # also drop_last must not make an error of few examples
        raise InvalidRequest(
            "the dataset of data_loader has no example, so the form of a batch is unknown"
        )
    if data_loader.batch_size is None or type(data_loader.batch_sampler) is not BatchSampler:
        raise InvalidRequest(
            "data_loader has a batch_sampler of its own, or no batch_size: give batch_size, the "
            "expected size of a batch. Users are drawn by Poisson sampling instead"
        )
    sampler = data_loader.sampler
    plain = type(sampler) in (SequentialSampler, DistributedSampler) or (
        type(sampler) is RandomSampler and not sampler.replacement
    )
    if not plain:
        raise InvalidRequest(
            f"data_loader has a sampler of type {type(sampler).__name__}, which is replaced by "
            "Poisson sampling from the whole dataset. Remove it; to train on a part of the "
            "dataset, pass a torch.utils.data.Subset"
        )


def shapes_of(batch: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors of a collated batch."""
    if isinstance(batch, torch.Tensor):
        return [tuple(batch.shape)]
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    return [s for part in batch for s in shapes_of(part)] if isinstance(batch, list | tuple) else []


class IndividualDPLoader:
    """Batches of the drawn users' examples. A charged step is one batch or several.

    Args:
        private: charges and draws.
        examples: the examples of each user.
        source: the caller's loader: its dataset, ``collate_fn``, workers and pinned memory.
        a_pass: number of steps in one pass.
        steps: total number of steps; None: no limit.
        batch_size: examples in every batch.
        charge_ahead: charge the next step of a pass while the current one is computed.
        is_private: whether the generators of masks are seeded by the operating system.
        check: called before a step is charged.

    Attributes:
        is_last: whether the last batch that was returned completes its step. Step a learning-rate
            scheduler only then: the number of batches depends on the drawn users.
    """

    def __init__(
        self,
        private: PrivateSteps | RankedSteps,
        examples: ExamplesByUser,
        source: DataLoader[Any],
        *,
        a_pass: int,
        steps: int | None,
        batch_size: int,
        charge_ahead: bool,
        is_private: bool,
        check: Callable[[], None],
    ) -> None:
        self.private = private
        self.batch_size = batch_size
        self.dataset = source.dataset
        self._examples, self._source = examples, source
        self._steps, self._a_pass = steps, a_pass
        self._ahead, self._is_private, self._check = charge_ahead, is_private, check
        self._shapes: list[tuple[int, ...]] | None = None  # of the first batch of this loader
        self._places: slice | None = None
        self.is_last = True
        self.randomness = Randomness()
        self.sums = SumsByUser(np.empty(0, dtype=np.int64))
        self._workers = Workers(source, is_private) if source.num_workers else None

    def __len__(self) -> int:
        """Return the number of steps in the next pass."""
        if self.private.stopped:
            return 0
        left = self._a_pass if self._steps is None else self._steps - self.private.step
        return max(0, min(self._a_pass, left))

    @property
    def batch_sampler(self) -> Any:
        """Raise the error that says what to use instead of Opacus's ``BatchMemoryManager``."""
        raise InvalidRequest(
            "batches of this loader cannot be split from outside, as BatchMemoryManager does: pass "
            "max_physical_batch_size to make_private"
        )

    def __iter__(self) -> Iterator[Any]:
        end = self.private.step + len(self)
        while self.private.step < end and not self.private.stopped:
            self._check()
            step = self.private.begin(ahead=self._ahead and self.private.step + 1 < end)
            chosen = self._examples.select(step.positions)
            self.sums = SumsByUser(chosen.counts)
            count = len(chosen.examples)
            if self._is_private:
                self.randomness.hide()
            starts = range(0, max(count, 1), self.batch_size)
            batches = [chosen.examples[start : start + self.batch_size] for start in starts]
            for start, batch in zip(starts, self._filled(batches), strict=True):
                self._places = slice(start, min(start + self.batch_size, count))
                self.is_last = self._places.stop == count
                shapes = shapes_of(batch)
                self._shapes = self._shapes or shapes
                if shapes != self._shapes:
                    raise InvalidRequest(
                        "two batches have different shapes, so gradients depend on the other "
                        "users' examples: publish nothing of this training. Let collate_fn pad "
                        "to one length, not to the longest example of a batch"
                    )
                yield batch
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

    def _filled(self, batches: Sequence[NDArray[np.int64]]) -> Iterator[Any]:
        """Collate examples, padded with copies of the last one, or of any, to the batch size."""
        collate = self._source.collate_fn
        filler = np.zeros(1, dtype=np.int64)  # of a batch without users; its gradients are dropped
        filled = [batch if len(batch) else filler for batch in batches]
        if type(self.dataset) is TensorDataset and collate is default_collate:
            # Index the tensors once instead of collating single examples.
            for batch in filled:
                padded = np.full(self.batch_size, batch[-1])
                padded[: len(batch)] = batch
                places = torch.from_numpy(padded)
                tensors = self.dataset.tensors
                yield self._pinned([one.index_select(0, places.to(one.device)) for one in tensors])
            return
        fetched = map(self._fetch, filled) if self._workers is None else self._workers.fetch(filled)
        for taken in fetched:
            yield self._pinned(collate([*taken, *[taken[-1]] * (self.batch_size - len(taken))]))

    def _fetch(self, batch: NDArray[np.int64]) -> list[Any]:
        places = batch.tolist()
        if hasattr(self.dataset, "__getitems__"):
            return list(self.dataset.__getitems__(places))
        return [self.dataset[place] for place in places]

    def _pinned(self, batch: Any) -> Any:
        return pin_memory(batch) if self._source.pin_memory and torch.cuda.is_available() else batch


class Workers:
    """Processes that fetch examples: each batch of a step is divided among them."""

    def __init__(self, source: DataLoader[Any], is_private: bool) -> None:
        self._chunks: list[list[int]] = []
        self._count = source.num_workers
        self._loader: DataLoader[Any] = DataLoader(
            source.dataset,
            batch_sampler=self._chunks,
            num_workers=source.num_workers,
            collate_fn=_unchanged,
            timeout=source.timeout,
            worker_init_fn=_Seeded(source.worker_init_fn) if is_private else source.worker_init_fn,
            multiprocessing_context=source.multiprocessing_context,
            generator=None if is_private else source.generator,
            prefetch_factor=source.prefetch_factor,
            persistent_workers=True,
        )

    def fetch(self, batches: Sequence[NDArray[np.int64]]) -> Iterator[list[Any]]:
        """Return the examples of each batch; later batches are fetched in advance."""
        parts = [[part for part in np.array_split(b, self._count) if len(part)] for b in batches]
        self._chunks[:] = [part.tolist() for batch in parts for part in batch]
        chunks = iter(self._loader)
        for batch in parts:
            yield [example for chunk in islice(chunks, len(batch)) for example in chunk]


def _unchanged(examples: list[Any]) -> list[Any]:
    return examples


class _Seeded:
    """Start a worker process with generators that are seeded by the operating system."""

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        if self._init is not None:
            self._init(worker)
        Randomness().hide()


class Randomness:
    """The generators that masks and augmentations draw from: PyTorch's, NumPy's and Python's.

    While they are hidden, the mask of an example is independent of its place in the batch, even
    for a party that knows the seeds set by the caller. Afterwards they continue from their state
    before, except that NumPy's old functions draw normal deviates in pairs, of which the second one
    may be lost.

    All trainings of a process share the generators. So a training whose step ends while a training
    that began its step later has them hidden leaves them hidden; the other one restores them.
    """

    _hiding: ClassVar[list[Randomness]] = []  # in the order in which they hid the generators

    def __init__(self) -> None:
        self._kept: list[Callable[[], object]] = []  # restore the generators
        is_worker = torch.utils.data.get_worker_info() is not None
        # In a worker process CUDA is not initialised, and must not be.
        self._keeps_cuda = not is_worker and torch.cuda.is_available()
        # torch.manual_seed notes the seed for each kind of device, which is slow without devices.
        has_devices = is_worker or torch.accelerator.is_available()
        self._seed = torch.manual_seed if has_devices else torch.default_generator.manual_seed
        self._spare = np.random.MT19937()

    def __enter__(self) -> None:
        self.hide()

    def __exit__(self, *_: object) -> None:
        self.restore()

    def hide(self) -> None:
        """Seed the generators from the operating system, unless they are hidden already."""
        if self._kept:
            return
        self._kept = [
            partial(torch.default_generator.set_state, torch.default_generator.get_state()),
            partial(random.setstate, random.getstate()),
            partial(set_bit_generator, get_bit_generator()),
        ]
        if self._keeps_cuda:
            restore = partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
            self._kept.append(restore)
        self._hiding.append(self)
        self._seed(secrets.randbits(63))
        random.seed(secrets.randbits(256))
        set_bit_generator(self._spare)  # setting a state again would be slower
        np.random.seed(np.frombuffer(secrets.token_bytes(32), dtype=np.uint32))

    def restore(self) -> None:
        """Restore the generators' state before ``hide``, now or when a later training does so."""
        if not self._kept:
            return
        kept, self._kept = self._kept, []
        place = self._hiding.index(self)
        del self._hiding[place]
        if place < len(self._hiding):
            self._hiding[place]._kept = kept
        else:
            for restore in kept:
                restore()
