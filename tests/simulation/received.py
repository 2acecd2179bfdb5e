"""The decisions that clients received, checked against the budgets in exact arithmetic, without
a log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streams.records import Policy
from streams.sdk.decisions import StepDecision
from tests.simulation.world import Wrong

_UNIT = 2**44


@dataclass(frozen=True)
class Content:
    """The content of a step."""

    users: list[Any]
    norms: list[float]
    noise_stddev: float


@dataclass(frozen=True)
class RosterDecided:
    """The decision of a roster step, in the fields that a ``StepDecision`` has."""

    admitted: NDArray[np.bool_]
    granted: NDArray[np.float64]


@dataclass(frozen=True)
class ReceivedStep:
    """The content of a step, and the decision that a client received."""

    content: Content
    admitted: list[bool]
    granted: list[float]

    def by_user(self) -> tuple[float, dict[Any, tuple[float, bool, float]]]:
        """Return the noise, and by user the norm, the admission and the granted norm.

        The order of users of different partitions is not part of a step's content.
        """
        numbers = zip(self.content.norms, self.admitted, self.granted, strict=True)
        return self.content.noise_stddev, dict(zip(self.content.users, numbers, strict=True))


class ReceivedDecisions:
    """The decisions that all clients of a simulation received."""

    def __init__(self) -> None:
        self.steps: dict[tuple[str, str, int], ReceivedStep] = {}
        self._released: dict[tuple[str, str], int] = {}
        self._attempts: dict[tuple[str, str], int] = {}
        self._spent: dict[tuple[str, Any], Fraction] = defaultdict(Fraction)
        self._took_part: dict[tuple[str, str, Any], set[int]] = defaultdict(set)

    def content(self, rng: Random, users: list[Any], scale: float) -> Content:
        """Draw the content of a step; a user's budget suffices for a few such steps."""
        some = rng.sample(users, rng.randint(0 if rng.random() < 0.1 else 1, len(users)))
        norms = [rng.choice((0.0, 0.25, 0.5, 0.75, 1.0, 1.0)) for _ in some]
        return Content(some, norms, scale * rng.choice((1.0, 2.0, 4.0)))

    def add(
        self,
        who: str,
        policies: Sequence[Policy],
        run: str,
        step: int,
        content: Content,
        decision: StepDecision | RosterDecided,
    ) -> None:
        """Add a decision that a client received. No later decision may contradict it.

        Args:
            who: the client.
            policies: the policies of the dataset and of its ancestors.
            run: the run of the dataset.
            step: the step of the run.
            content: the content that was charged.
            decision: the decision.

        Raises:
            Wrong: one step has two decisions, or more than a budget was admitted.
        """
        received = ReceivedStep(content, decision.admitted.tolist(), decision.granted.tolist())
        key = policies[0].dataset, run, step
        before = self.steps.setdefault(key, received)
        noise, by_user = received.by_user()
        noise_before, by_user_before = before.by_user()
        # All noises that count as a step have the same cost table, by which a roster recognises the
        # step of an earlier attempt.
        if all(policy.measure == "steps" for policy in policies):
            noise_before = noise
        if (noise, by_user) != (noise_before, by_user_before):
            raise Wrong(f"{who} received {received} for {key}, after {before}")
        if before is not received:
            return
        for user, admitted, granted, norm in zip(
            content.users, received.admitted, received.granted, content.norms, strict=True
        ):
            if not (granted == 0.0 if not admitted else granted <= norm):
                raise Wrong(f"{who} is granted {granted} of {norm} for {user!r} in {key}")
            for policy in policies if admitted else ():
                rho = (Fraction(granted) / Fraction(content.noise_stddev)) ** 2 / 2
                counted = Fraction(granted > 0) if policy.measure == "steps" else rho
                self._spent[policy.dataset, user] += counted
                self._check(who, policy, user)

    def release(self, who: str, dataset: str, run: str, step: int) -> None:
        """Note that a step was released; it must be decided, and released once and in order.

        Args:
            who: the trainer that releases it, or its successor or predecessor.
            dataset: the dataset that was charged.
            run: the run.
            step: the step of the run.

        Raises:
            Wrong: no client received the decision, or this step or a later one was released before.
        """
        last = self._released.get((dataset, run), -1)
        if step <= last or (dataset, run, step) not in self.steps:
            raise Wrong(f"{who} releases step {step} of {run} of {dataset}, after step {last}")
        self._released[dataset, run] = step

    def opened(self, dataset: str, run: str, attempt: int) -> None:
        """Note that a client was given an attempt of a run."""
        self._attempts[dataset, run] = max(attempt, self.attempt(dataset, run))

    def attempt(self, dataset: str, run: str) -> int:
        """Return the highest attempt of a run that a client was given, 0 if none was."""
        return self._attempts.get((dataset, run), 0)

    def check_separation(self, dataset: str, run: str, step: int, separation: int) -> None:
        """Check that no user was admitted to two steps that are closer than the minimum separation.

        Args:
            dataset: the dataset that was charged.
            run: the run of the dataset.
            step: a step whose decision a client received.
            separation: the minimum separation, in steps.

        Raises:
            Wrong: a user was.
        """
        received = self.steps[dataset, run, step]
        for user, granted in zip(received.content.users, received.granted, strict=True):
            steps = self._took_part[dataset, run, user]
            steps |= {step} if granted else set()
            near = [other for other in steps if 0 < abs(other - step) < separation]
            if granted and near:
                raise Wrong(f"{user!r} takes part in steps {near} and {step} of {run} of {dataset}")

    def _check(self, who: str, policy: Policy, user: Any) -> None:
        if policy.per_user_order is True:
            return  # the auditor checks per-user orders
        spent = self._spent[policy.dataset, user]
        factors = [Fraction(order) for order in policy.orders] or [
            Fraction(2 if policy.measure == "gdp" else 1)
        ]
        for factor, budget in zip(factors, policy.budget, strict=True):
            if spent * factor > Fraction(budget, _UNIT):
                raise Wrong(
                    f"{who}: {user!r} of {policy.dataset} was admitted to {spent * factor}, "
                    f"beyond the budget of {Fraction(budget, _UNIT)}"
                )
