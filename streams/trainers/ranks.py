"""Trainings on several processes with ``torch.distributed``: one rank decides, all compute.

1. Rank 0 charges the step, draws its users, and tells the other ranks.
2. Each rank takes every n-th drawn user, and clips and adds up the gradients of these users.
3. The sums are integers. They are added up over the ranks, exactly, in whatever order.
4. Rank 0 sets levels from all norms, adds noise once, and sends the released value to all ranks.

So the released value is that of one process, bit for bit, if gradients are: all batches must have
the same size, and all ranks the same hardware and software. A user's examples stay on one rank.

Rank 0 sends drawn users and levels, and receives norms and sums without noise. These are as secret
as the data, so the network between the ranks must be as well protected.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from streams.records import Policy
from streams.sdk.errors import InvalidRequest, Unusable
from streams.trainers.checkpoint import Checkpoint, Saved
from streams.trainers.steps import OpenStep, PrivateSteps, StepSum, Total

T = TypeVar("T")


def rank_and_ranks() -> tuple[int, int]:
    """Return this process's rank and the number of ranks.

    Raises:
        InvalidRequest: there are several processes that do not know each other yet.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InvalidRequest(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but torch.distributed is not initialised, "
            "so each process would charge and release by itself: call "
            "torch.distributed.init_process_group first"
        )
    return 0, 1


def check_equal(settings: object, module: torch.nn.Module) -> None:
    """Check that all ranks train the same; then give them the parameters of rank 0.

    Raises:
        InvalidRequest: the settings differ between ranks.
    """
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, settings)
    if any(one != found[0] for one in found):
        raise InvalidRequest(
            "ranks have different examples, users, models or arguments: start all of them with the "
            "same ones"
        )
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor, src=0)


def from_first(compute: Callable[[], T]) -> T:
    """Return what rank 0 computes, on all ranks.

    Raises:
        Unusable: on the other ranks, if rank 0 has an error.
    """
    told: list[Any] = [None, None]  # the value, and the text of the error
    raised: BaseException | None = None
    if dist.get_rank() == 0:
        try:
            told[0] = compute()
        except BaseException as error:
            raised, told[1] = error, f"{type(error).__name__}: {error}"
    dist.broadcast_object_list(told, src=0)
    if raised is not None:
        raise raised
    if told[1] is not None:
        raise Unusable(f"rank 0 has ended the training. {told[1]}")
    found: T = told[0]
    return found


class RankedSteps:
    """``PrivateSteps`` of a training on several ranks. All ranks make every call.

    Args:
        opened: opens the training on rank 0.
        new_sum: as for ``PrivateSteps``.

    Attributes:
        noise_multiplier: as of ``PrivateSteps``; None if it is a schedule.

    Raises:
        Unusable: on the other ranks, if the training cannot be opened on rank 0.
    """

    def __init__(
        self, opened: Callable[[], PrivateSteps], new_sum: Callable[[int], StepSum]
    ) -> None:
        self._private: PrivateSteps | None = None  # on rank 0

        def first() -> tuple[int, list[Policy], float | None]:
            self._private = private = opened()
            noise = private.noise_multiplier
            return private.step, private.policies, None if callable(noise) else noise

        self._next, self.policies, self.noise_multiplier = from_first(first)
        self.stopped = False  # there is no private stop here
        self._rank, self._ranks = rank_and_ranks()
        self._ticket: OpenStep | None = None  # on rank 0, with all users
        self._open: OpenStep | None = None
        self.new_sum = new_sum

    @property
    def step(self) -> int:
        """Return the step that is open, or else the next one."""
        return self._next if self._open is None else self._open.step

    @property
    def open_step(self) -> OpenStep | None:
        """Return the step that is charged and not released, with this rank's users."""
        return self._open

    def begin(self, *, ahead: bool = False) -> OpenStep:
        """Do as ``PrivateSteps.begin``; the step has this rank's users.

        Raises:
            Unusable: on the other ranks, if the step cannot be charged on rank 0.
        """
        if self._open is not None:
            self._open.forget()
            return self._open

        def charged() -> tuple[int, NDArray[np.int64], NDArray[np.float64], float, int]:
            assert self._private is not None
            self._ticket = made = self._private.begin(ahead=ahead)
            return made.step, made.positions, made.clip_norms, made.noise_stddev, made.exponent

        step, positions, limits, noise, exponent = from_first(charged)
        mine = slice(self._rank, None, self._ranks)
        self._open = OpenStep(self, step, positions[mine], limits[mine], noise, exponent)
        return self._open

    def save(self, checkpoint: Checkpoint, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Do as ``PrivateSteps.save`` on rank 0, and nothing on the others."""
        if self._private is not None:
            self._private.save(checkpoint, arrays)

    def resume(self, checkpoint: Checkpoint) -> Saved | None:
        """Do as ``PrivateSteps.resume``; all ranks get what rank 0 has read."""
        steps = self._private
        return from_first(lambda: None if steps is None else steps.resume(checkpoint))

    def warn_of_lost_steps(self) -> None:
        """Do as ``PrivateSteps.warn_of_lost_steps`` on rank 0, and nothing on the others."""
        if self._private is not None:
            self._private.warn_of_lost_steps()

    def close_step(
        self,
        step: OpenStep,
        total: Total,
        norms: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Add up the sums of all ranks, and return what rank 0 releases."""
        if step is not self._open:
            raise Unusable(f"step {step.step} was released or given up: begin the next one")
        exponent, summed = total[0], self._on_device(total[1])
        dist.all_reduce(summed)
        found: list[Any] = [None] * self._ranks
        dist.all_gather_object(found, norms)

        def closed() -> tuple[NDArray[np.float64], int]:
            assert self._private is not None
            assert self._ticket is not None
            merged = np.empty(len(self._ticket.positions))
            for rank, mine in enumerate(found):
                merged[rank :: self._ranks] = mine
            whole = exponent, summed.cpu().numpy()
            return self._private.close_step(self._ticket, whole, merged), self._private.step

        released, following = from_first(closed)
        self._open, self._ticket, self._next = None, None, following
        return np.asarray(released)

    def _on_device(self, sums: NDArray[np.int64]) -> torch.Tensor:
        """Return the sums where the backend can add them up."""
        tensor = torch.from_numpy(sums)
        return tensor.cuda() if dist.get_backend() == "nccl" else tensor
