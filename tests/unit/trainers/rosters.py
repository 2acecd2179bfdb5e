"""A roster in memory that charges every user at every step by a filter of ``accounting``.

It is the plain form of what the service does, without recurring charges or packed records.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import PoissonGaussian, RenyiFilter, candidate_orders, renyi_cost
from streams.records import Policy, Reason
from streams.sdk.dataset_requests import policy_from
from streams.sdk.errors import DecisionTimeout, Fenced
from streams.sdk.roster_steps import poisson_sample


@dataclass(frozen=True, eq=False)
class FilterDecision:
    step: int
    admitted: NDArray[np.bool_]
    clip_norms: NDArray[np.float64]
    sampling_rate: float
    may_be_drawn: bool = False

    def clip_norms_at(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.clip_norms[positions]

    def sample(self) -> NDArray[np.int64]:
        return poisson_sample(self.admitted, self.sampling_rate)


@dataclass(eq=False)
class FilterService:
    """The durable state: budgets, spending, decisions and levels."""

    epsilon: float = 8.0
    delta: float = 1e-5
    order: float = 0.0
    spent: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 1), np.int64))
    levels: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    users: list[object] = field(default_factory=list)
    decisions: list[FilterDecision] = field(default_factory=list)
    charges: list[tuple[float, float]] = field(default_factory=list)
    timeouts: int = 0
    attempts: int = 0
    _rule: RenyiFilter | None = None

    def rule(self, noise_stddev: float, sampling_rate: float, norm: float) -> RenyiFilter:
        """Return the filter at the order that admits most steps of the first charge."""
        if self._rule is None:
            orders, budgets = candidate_orders(self.epsilon, self.delta)
            cost = renyi_cost(PoissonGaussian(noise_stddev, sampling_rate), [norm], orders)[0]
            best = int(np.argmax(budgets / cost))
            self.order = float(orders[best])
            self._rule = RenyiFilter([self.order], [budgets[best]])
            self.spent = self._rule.initial_state(len(self.users))
        return self._rule

    def open(self, released: int | None = None) -> FilterRun:
        """Open a new attempt; with ``released``, a later decision is handed back."""
        self.attempts += 1
        return FilterRun(self, released)


class FilterRun:
    dataset, name = "digits", "night-7"
    outer: tuple[Policy, ...] = ()

    def __init__(self, service: FilterService, released: int | None) -> None:
        self.policy = policy_from(
            self.dataset,
            partitions=1,
            measure="renyi",
            epsilon=service.epsilon,
            delta=service.delta,
        )
        self.service = service
        self.attempt = service.attempts
        self.step = len(service.decisions)
        if released is not None and released == self.step - 2:
            self.step -= 1

    def check_attempt(self) -> None:
        if self.attempt < self.service.attempts:
            raise Fenced(Reason.OLDER_ATTEMPT, "a newer attempt", None, self.service.attempts)

    def enrol(self, users: ArrayLike, *, clip_norm: float, levels: int = 100) -> FilterRoster:
        ids = list(np.asarray(users).tolist())
        service = self.service
        if not service.users:
            service.users = ids
            service.levels = np.full(len(ids), float(clip_norm))
        assert service.users == ids, "another roster"
        return FilterRoster(self, clip_norm, levels)


class FilterRoster:
    def __init__(self, run: FilterRun, clip_norm: float, levels: int) -> None:
        self.clip_norm, self.levels = float(clip_norm), levels
        self._run = run
        self._service = run.service

    def charge(self, *, noise_stddev: float, sampling_rate: float = 1.0) -> FilterDecision:
        service, run = self._service, self._run
        if service.timeouts:
            service.timeouts -= 1
            raise DecisionTimeout("not now")
        may_be_drawn = run.step < len(service.decisions) and sampling_rate < 1.0
        if run.step == len(service.decisions):
            service.charges.append((noise_stddev, sampling_rate))
            service.decisions.append(self._decide(run.step, noise_stddev, sampling_rate))
        assert service.charges[run.step] == (noise_stddev, sampling_rate), "other content"
        run.step += 1
        return replace(service.decisions[run.step - 1], may_be_drawn=may_be_drawn)

    def _decide(self, step: int, noise_stddev: float, sampling_rate: float) -> FilterDecision:
        service = self._service
        rule = service.rule(noise_stddev, sampling_rate, self.clip_norm)
        grid, place = np.unique(service.levels, return_inverse=True)
        table = renyi_cost(PoissonGaussian(noise_stddev, sampling_rate), grid, rule.orders)
        service.spent, admitted = rule.admit(service.spent, table[place])
        levels = np.where(admitted, service.levels, 0.0)
        return FilterDecision(step, admitted, levels, sampling_rate)

    def observe(self, positions: ArrayLike, norms: ArrayLike) -> None:
        self.set_norms(norms, positions)

    def set_norms(self, norms: ArrayLike, positions: ArrayLike | None = None) -> None:
        places = slice(None) if positions is None else np.asarray(positions)
        values = np.asarray(norms, dtype=np.float64)
        assert (values <= self.clip_norm).all()
        step = self.clip_norm / self.levels
        levels = np.minimum(np.ceil(values / step) * step, self.clip_norm)
        self._service.levels[places] = np.maximum(levels, values)
