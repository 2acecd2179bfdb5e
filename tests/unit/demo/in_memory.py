"""A run without a service: the rule of ``accounting``, and states in a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import Gaussian, ZcdpFilter, zcdp_cost
from streams.schemas import User
from streams.sdk.errors import DecisionTimeout, InvalidRequest
from streams.sdk.run import StepDecision


@dataclass(frozen=True, eq=False)
class Seen:
    """A charge as it arrived."""

    users: list[User]
    norms: NDArray[np.float64]
    noise_stddev: float


class InMemoryRun:
    """Charges as ``Run`` does, at once; ``fail_next`` makes the next charge time out."""

    def __init__(self, rho: float, *, clip: bool = False) -> None:
        self.filter = ZcdpFilter(rho)
        self.clip = clip
        self.units: dict[User, int] = {}
        self.seen: list[Seen] = []
        self.step = 0
        self.fail_next = False

    def charge(
        self,
        users: NDArray[np.int64] | Sequence[User],
        norms: ArrayLike,
        *,
        noise_stddev: float,
        clip_norm: float | None,
    ) -> StepDecision:
        if self.fail_next:
            self.fail_next = False
            raise DecisionTimeout("not all partitions answered")
        ids: list[User] = users.tolist() if isinstance(users, np.ndarray) else list(users)
        values = np.asarray(norms, dtype=np.float64)
        if len(set(ids)) != len(ids) or values.shape != (len(ids),):
            raise InvalidRequest("users must be distinct, with a norm each")
        assert clip_norm is None or not len(values) or values.max() <= clip_norm
        self.seen.append(Seen(ids, values, noise_stddev))
        state = np.array([self.units.get(user, 0) for user in ids], dtype=np.int64)
        mechanism = Gaussian(noise_stddev)
        if self.clip:
            state, granted = self.filter.grant(state, mechanism, values)
            admitted = granted > 0
        else:
            state, admitted = self.filter.admit(state, zcdp_cost(mechanism, values))
            granted = np.where(admitted, values, 0.0)
        self.units.update(zip(ids, state.tolist(), strict=True))
        exhausted = self.filter.exhausted(state)
        decision = StepDecision(self.step, admitted, granted, exhausted)
        self.step += 1
        return decision
