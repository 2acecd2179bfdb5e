"""Batches for PyTorch: the drawn users' examples, in batches of one size.

A ``DataLoader`` of the caller says where examples come from and how they are put together. Its
batches are replaced by Poisson samples of users.
"""

from __future__ import annotations

import hashlib
import math
import random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from numpy.typing import ArrayLike, NDArray
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

from accounting.exact.argument_checks import whole_number
from accounting.exact.invalid_input import quoted
from streams.sdk.errors import InvalidRequest, invalid_requests
from streams.trainers.examples import Batch, ExamplesByUser, batches_of
from streams.trainers.planning import MOST_STEPS, Schedule, public_population, value_at
from streams.trainers.private_stop import PrivateStop
from streams.trainers.ranks import RankedSteps, rank_and_ranks
from streams.trainers.steps import Levels, OpenStep, PrivateSteps

_MULTIPLE: Final = 8  # batch sizes are multiples of this


class Settings(NamedTuple):
    """Optional arguments of ``make_private`` and ``make_private_with_epsilon``.

    Attributes:
        population: required: a public number of users, a round figure or a count that was released
            privately. The sampling rate times it is the denominator of every step. The number of
            users in the data is not public: neighbouring datasets differ in it.
        sampling_rate: the probability with which each user is drawn; may be a schedule, which needs
            ``steps``. None: the loader's ``batch_size`` over ``population``.
        column: the first column of a banded matrix, such as ``accounting.square_root_column``. It
            correlates the noise of later steps with that of earlier ones (``CorrelatedSteps``).
            ``population / batch_size`` fixed groups of users then take turns, in place of Poisson
            samples, so that ``sampling_rate``, ``stop`` and ``charge_ahead`` are left out.
        levels: as for ``PrivateSteps``.
        stop: as for ``PrivateSteps``, on one rank: the loader then ends before its last step.
        charge_ahead: charge the next step of a pass over the loader while the current one is
            computed (``PrivateSteps.begin``).
        max_physical_batch_size: the number of examples in every batch. A step with more examples is
            split into several batches, and the optimizer updates the parameters with the last one.
            By default most steps of users with one example fit in one batch.
        max_examples_per_user: the number of a user's examples that are used at most
            (``ExamplesByUser.of``). It bounds the time of a step. None: all of them.
        batch_first: as in Opacus.
        loss_reduction: as in Opacus: "mean" or "sum", over the batch.
        examples_are_independent: declares that the gradient of an example does not depend on the
            others, so that ``check`` is not required. ``statement`` says so.
        not_private_generator: draws coins and noise, for tests. A party that knows its seed knows
            the noise.
    """

    population: float
    sampling_rate: Schedule | None = None
    column: ArrayLike | None = None
    levels: Levels | None = None
    stop: PrivateStop | None = None
    charge_ahead: bool = False
    max_physical_batch_size: int | None = None
    max_examples_per_user: int | None = None
    batch_first: bool = True
    loss_reduction: str = "mean"
    examples_are_independent: bool = False
    not_private_generator: np.random.Generator | None = None


class Draws:
    """The way users are drawn, and how often.

    Args:
        source: the caller's loader.
        users: (examples,), the user of each example; None: each example has its own user.
        epochs: planned number of passes.
        steps: planned number of steps, instead of ``epochs``.
        settings: all other arguments.

    Attributes:
        groups: the number of groups of users that take turns; None if users are drawn.

    Raises:
        InvalidRequest: an argument is invalid.
    """

    def __init__(
        self, source: Any, users: Any, epochs: int | None, steps: int | None, settings: Settings
    ) -> None:
        _check_loader(source)
        _, self.ranks = rank_and_ranks()
        if settings.loss_reduction not in ("mean", "sum"):
            raise InvalidRequest(
                f"loss_reduction is {quoted(settings.loss_reduction)}; it must be 'mean' or 'sum'"
            )
        if settings.stop is not None and self.ranks > 1:
            raise InvalidRequest(
                f"stop works on one rank, but there are {self.ranks}: leave it out"
            )
        if epochs is not None and steps is not None:
            raise InvalidRequest("give epochs or steps, not both")
        sizes = {"steps": steps, "epochs": epochs}
        sizes["max_physical_batch_size"] = settings.max_physical_batch_size
        with invalid_requests():
            for name, size in sizes.items():
                if size is not None:
                    whole_number(name, size, 1, MOST_STEPS)
        self.source, self.settings, self.one_each = source, settings, users is None
        self.examples = ExamplesByUser.covering(
            len(source.dataset), users, settings.max_examples_per_user
        )
        people, rate = public_population(settings.population), settings.sampling_rate
        is_split = isinstance(source.sampler, DistributedSampler)
        batch = source.batch_size * (self.ranks if is_split else 1)  # on all ranks
        if rate is None:
            rate = min(1.0, batch / people)
        if not callable(rate) and not 0.0 < rate <= 1.0:
            raise InvalidRequest(f"sampling_rate is {quoted(rate)}; it must be above 0, at most 1")
        self.rate: Schedule = rate
        self.groups: int | None = None
        if settings.column is not None:
            self.groups, self.rate = self._groups(batch, people, epochs or steps), 1.0
            self.a_pass = steps or self.groups
            self.expected_batch: Schedule = people / self.groups
        elif callable(rate):
            if steps is None:
                raise InvalidRequest("with a schedule of sampling_rate give steps, not epochs")
            self.a_pass = steps
            self.expected_batch = lambda step: value_at(self.rate, step) * people
        else:
            self.a_pass = steps or round(1.0 / rate)
            self.expected_batch = rate * people
        if settings.loss_reduction == "sum":
            self.expected_batch = 1.0
        self.expected_users = people if callable(rate) else rate * people  # in a step
        self.steps = steps if epochs is None else epochs * self.a_pass
        # A public size in which nearly all Poisson samples of this mean size fit.
        usual = batch / self.ranks
        usual = _MULTIPLE * math.ceil((usual + 2.0 * math.sqrt(usual)) / _MULTIPLE)
        self.batch_size = settings.max_physical_batch_size or usual

    def _groups(self, batch: int, people: float, planned: int | None) -> int:
        """Return the number of groups that take turns, of ``batch`` users on average."""
        settings = self.settings
        if settings.sampling_rate is not None or settings.stop or settings.charge_ahead:
            raise InvalidRequest(
                "with column, groups of users take turns: leave out sampling_rate, stop and "
                "charge_ahead"
            )
        if planned is None:
            raise InvalidRequest("with column, the number of steps is fixed: give epochs or steps")
        return max(2, round(people / batch))

    @property
    def charges(self) -> int | None:
        """Return how often a user is charged in the planned steps; None without a plan."""
        return -(-self.steps // (self.groups or 1)) if self.steps else None

    @property
    def compared(self) -> tuple[object, ...]:
        """Return the arguments that must be the same on all ranks."""
        grouped = self.examples.order.tobytes(), self.examples.starts.tobytes()
        ids = repr(self.examples.users.tolist()).encode()
        rate = None if callable(self.rate) else self.rate
        settings, digest = self.settings, hashlib.sha256(b"".join([*grouped, ids])).digest()
        plan = self.one_each, rate, self.steps, self.groups, self.expected_users, self.batch_size
        return digest, *plan, settings.batch_first, settings.loss_reduction


def _check_loader(data_loader: Any) -> None:
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
        draws: the caller's loader, the examples of each user, and the number of steps.
        check: called before a step is charged.

    Attributes:
        is_last: whether the last batch that was returned completes its step. Step a learning-rate
            scheduler only then: the number of batches depends on the drawn users.
    """

    def __init__(
        self, private: PrivateSteps | RankedSteps, draws: Draws, check: Callable[[], None]
    ) -> None:
        self.private, self.batch_size = private, draws.batch_size
        self.dataset = draws.source.dataset
        self.sample_rate = None if callable(draws.rate) else draws.rate
        self._draws, self._check = draws, check
        self._is_private = draws.settings.not_private_generator is None
        self._shapes: list[tuple[int, ...]] | None = None  # of the first batch of this loader
        self._batch: Batch | None = None  # which waits for optimizer.step()
        self.is_last = True
        self.randomness = Randomness()
        self._fetched = _Fetched(draws.source, self._is_private)

    def __len__(self) -> int:
        """Return the number of steps in the next pass."""
        if self.private.stopped:
            return 0
        a_pass, steps = self._draws.a_pass, self._draws.steps
        return max(0, a_pass if steps is None else min(a_pass, steps - self.private.step))

    @property
    def batch_sampler(self) -> Any:
        """Raise the error that says what to use instead of Opacus's ``BatchMemoryManager``."""
        raise InvalidRequest(
            "batches of this loader cannot be split from outside, as BatchMemoryManager does: pass "
            "max_physical_batch_size to make_private"
        )

    def __iter__(self) -> Iterator[Any]:
        self.private.warn_of_lost_steps()
        end = self.private.step + len(self)
        while self.private.step < end and not self.private.stopped:
            self._check()
            ahead = self._draws.settings.charge_ahead and self.private.step + 1 < end
            step = self.private.begin(ahead=ahead)
            chosen, counts = self._draws.examples.select(step.positions)
            if self._is_private:
                self.randomness.hide()
            batches = list(batches_of(counts, self.batch_size))
            filled = self._filled([chosen[batch.examples] for batch in batches])
            for number, batch in enumerate(filled, 1):
                self._batch, self.is_last = batches[number - 1], number == len(batches)
                shapes = shapes_of(batch)
                self._shapes = self._shapes or shapes
                if shapes != self._shapes:
                    raise InvalidRequest(
                        "two batches have different shapes, so gradients depend on the other "
                        "users' examples: publish nothing of this training. Let collate_fn pad "
                        "to one length, not to the longest example of a batch"
                    )
                yield batch
                if self._batch is not None:
                    raise InvalidRequest(
                        "optimizer.step() was not called for the last batch: iterate again, which "
                        "repeats the step with the same users"
                    )

    def take(self) -> tuple[OpenStep, Batch]:
        """Return the step of the last batch, and its users, once."""
        step = self.private.open_step
        if self._batch is None or step is None:
            raise InvalidRequest("no batch of the loader is waiting for optimizer.step()")
        batch, self._batch = self._batch, None
        return step, batch

    def _filled(self, batches: Sequence[NDArray[np.int64]]) -> Iterator[Any]:
        """Collate examples, padded with copies of the last one, or of any, to the batch size."""
        collate = self._draws.source.collate_fn
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
        for taken in self._fetched.batches(filled):
            yield self._pinned(collate([*taken, *[taken[-1]] * (self.batch_size - len(taken))]))

    def _pinned(self, batch: Any) -> Any:
        pins = self._draws.source.pin_memory and torch.cuda.is_available()
        return pin_memory(batch) if pins else batch


class _Fetched:
    """Fetches examples, in the caller's number of processes: each batch of a step is divided among
    them, because the next step is not known before it is charged.
    """

    def __init__(self, source: DataLoader[Any], is_private: bool) -> None:
        self._chunks: list[list[int]] = []
        self._workers = max(1, source.num_workers)
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
            persistent_workers=source.num_workers > 0,
        )

    def batches(self, batches: Sequence[NDArray[np.int64]]) -> Iterator[list[Any]]:
        """Return the examples of each batch; processes fetch later batches in advance."""
        parts = [[part for part in np.array_split(b, self._workers) if len(part)] for b in batches]
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
