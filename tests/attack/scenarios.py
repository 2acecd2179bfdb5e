"""Trainings and streams of queries with canaries, through the service in memory.

Each canary is a user with a coordinate of its own, so one run is many independent attacks. Half of
the canaries have contributions of the clip norm. The other half have small ones: they stay in long
after a user with the clip norm is halted. Gradients are longer than the charged level, so that only
clipping makes them cost what was charged. A few users with nothing to contribute keep every run
going, because a run that ends when its users are exhausted reveals who was in it.

The attacker knows everything but the coins, and sees all releases. It scores a canary by the log
likelihood ratio of the releases in the canary's coordinate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from accounting import MEASURES, Measure, StepShape, gdp_budget, steps_measure
from streams import Turnstile
from streams.queries import QueryAnswerer
from streams.records import Policy
from streams.trainers.steps import Levels, PrivateSteps

Floats = NDArray[np.float64]

CLIP_NORM: Final = 1.0
LONGER: Final = 4.0
"""The norm of a gradient, as a multiple of the level to which it has to be clipped."""

BYSTANDERS: Final = 10
GROUPS: Final = ("clip norm", "small")
_EXHAUSTED: Final = 1.0 - 1e-9


class Group(NamedTuple):
    """The canaries of one norm in one run.

    Attributes:
        ratios: log likelihood ratios of each step, (steps, canaries).
        inside: whether each canary was in, (canaries,).
        lasted: the step after the last one to which a canary contributed.
    """

    ratios: Floats
    inside: NDArray[np.bool_]
    lasted: int


class Scenario(Protocol):
    """A way to use the service, with a claim about it."""

    name: str
    delta: float

    def run(self, rng: np.random.Generator, canaries: int) -> tuple[Policy, dict[str, Group]]:
        """Make one run with so many canaries, and return the claim and what the attacker saw."""
        ...

    def family(self, group: str) -> Measure:
        """Return the measure whose budgets have the loss of such canaries: gdp, or a number of
        sampled steps.
        """
        ...


def log_ratio(released: Floats, norm: Floats | float, noise: float, rate: float) -> Floats:
    """Return the log likelihood ratio of a step: contribution drawn at the rate, or absent."""
    shifted = norm * (2.0 * released - norm) / (2.0 * noise**2)
    if rate == 1.0:
        return np.asarray(shifted)
    return np.logaddexp(np.log1p(-rate), np.log(rate) + shifted)


def groups_of(canaries: int) -> NDArray[np.bool_]:
    """Return which canaries have small contributions."""
    return np.arange(canaries) % 2 == 1


@dataclass(frozen=True)
class Training:
    """A training with `PrivateSteps` on a roster.

    Attributes:
        measure, epsilon, delta: of the dataset, which is the claim.
        noise: the noise multiplier.
        rate: the sampling rate.
        steps: of the run; more than any canary can pay for.
        small: the level of the small canaries.
        levels: as for `PrivateSteps`. With "own", small canaries have gradients of the norm
            `small`, and their levels follow what was seen of them.
        adaptive: whether each canary's level follows the last release in its coordinate.
    """

    name: str
    measure: str
    epsilon: float
    noise: float
    steps: int
    small: float
    delta: float = 1e-5
    rate: float = 1.0
    levels: Levels = "clip_norm"
    adaptive: bool = False
    shape: Mapping[str, float] = field(default_factory=dict)

    def run(self, rng: np.random.Generator, canaries: int) -> tuple[Policy, dict[str, Group]]:
        is_small, inside = groups_of(canaries), rng.random(canaries) < 0.5
        users, n = np.flatnonzero(inside), int(inside.sum())
        ids = np.concatenate([users, canaries + np.arange(BYSTANDERS)])
        level = np.where(is_small, self.small, CLIP_NORM)
        raw = LONGER * level
        if self.levels == "own":
            raw[is_small] = self.small
        ratios, last = np.zeros((self.steps, canaries)), np.zeros(canaries, dtype=int)
        spent, most = np.zeros(canaries), gdp_budget(self.epsilon, self.delta) ** 2
        with Turnstile.in_memory(partitions=2) as turnstile:
            policy = turnstile.create_dataset(
                "audited",
                measure=self.measure,
                epsilon=self.epsilon,
                delta=self.delta,
                **self.shape,
            )
            steps = PrivateSteps(
                turnstile.run("audited", "canaries"),
                ids,
                clip_norm=CLIP_NORM,
                noise_multiplier=self.noise,
                sampling_rate=self.rate,
                expected_batch=1.0,
                levels=self.levels,
                not_private_generator=rng,
            )
            steps.roster.set_norms(np.concatenate([level[users], np.zeros(BYSTANDERS)]))
            released = np.zeros(canaries)
            for step in range(self.steps):
                norms = level
                if self.adaptive:
                    norms = np.where(released > 0.0, level, level / 2.0)
                    steps.roster.set_norms(norms[users], np.arange(n))
                opened = steps.begin()
                drawn = opened.positions[opened.positions < n]
                rows = np.zeros((len(opened.positions), canaries))
                rows[np.arange(len(drawn)), users[drawn]] = raw[users[drawn]]
                opened.add(rows)
                released = opened.release(canaries)
                given = np.where(is_small & (self.levels == "own"), raw, norms)
                found = log_ratio(released, given, self.noise, self.rate)
                if self.adaptive:  # the attacker knows the rule, and so what was admitted
                    cost = (norms / self.noise) ** 2
                    fits = spent + cost <= most * _EXHAUSTED
                    spent, found = spent + fits * cost, found * fits
                ratios[step], last[users[drawn]] = found, step + 1
        return policy, _by_group(ratios, inside, is_small, last)

    def family(self, group: str) -> Measure:
        if self.rate == 1.0:
            return MEASURES["gdp"]
        norm = self.small if group == "small" else CLIP_NORM
        return steps_measure(StepShape(self.rate, self.noise / norm))


@dataclass(frozen=True)
class Sums:
    """A stream of sums with `QueryAnswerer`, each of vectors.

    Attributes:
        epsilon, delta: of the dataset, which is the claim; its measure is gdp.
        norm_budget: the squared norms that a user can pay for.
        windows: the number of queries; more than any canary can pay for.
        small: the norm of the small canaries.
    """

    name: str
    epsilon: float
    norm_budget: float
    windows: int
    small: float
    delta: float = 1e-5

    def run(self, rng: np.random.Generator, canaries: int) -> tuple[Policy, dict[str, Group]]:
        is_small, inside = groups_of(canaries), rng.random(canaries) < 0.5
        users = np.flatnonzero(inside)
        norms = np.where(is_small, self.small, LONGER * CLIP_NORM)
        rows = np.zeros((len(users), canaries))
        rows[np.arange(len(users)), users] = norms[users]
        ratios, last = np.zeros((self.windows, canaries)), np.zeros(canaries, dtype=int)
        with Turnstile.in_memory(partitions=2) as turnstile:
            policy = turnstile.create_dataset(
                "audited", epsilon=self.epsilon, delta=self.delta, on_exhaustion="clip"
            )
            answerer = QueryAnswerer.calibrated(
                turnstile.run("audited", "canaries"),
                norm_budget=self.norm_budget,
                clip_norm=CLIP_NORM,
                noise=rng,
            )
            given = np.minimum(norms, CLIP_NORM)
            for window in range(self.windows):
                answered = answerer.answer(users, rows, dimension=canaries)
                ratios[window] = log_ratio(answered.value, given, answered.noise_stddev, 1.0)
                assert answerer.last_charge is not None
                last[users[answerer.last_charge.decision.admitted]] = window + 1
        return policy, _by_group(ratios, inside, is_small, last)

    def family(self, group: str) -> Measure:
        return MEASURES["gdp"]


def _by_group(
    ratios: Floats, inside: NDArray[np.bool_], is_small: NDArray[np.bool_], last: NDArray[np.int64]
) -> dict[str, Group]:
    return {
        name: Group(ratios[:, mine], inside[mine], int(last[mine].max(initial=0)))
        for name, mine in zip(GROUPS, (~is_small, is_small), strict=True)
    }


FULL_BATCH: Final = Training("full-batch gdp", "gdp", 4.0, 2.2, 80, 0.24)
ADAPTIVE: Final = Training(
    "full-batch gdp, levels by outputs", "gdp", 4.0, 2.2, 200, 0.24, adaptive=True
)
SAMPLED: Final = Training("sampled renyi", "renyi", 4.0, 2.0, 300, 0.5, rate=0.2)
OWN: Final = Training(
    "sampled renyi, levels by coins", "renyi", 4.0, 2.0, 300, 0.2, rate=0.2, levels="own"
)
COUNTED: Final = Training(
    "sampled steps",
    "steps",
    4.0,
    1.5,
    60,
    0.5,
    rate=0.2,
    shape={"sampling_rate": 0.2, "noise_multiplier": 1.5},
)
SUMS: Final = Sums("stream of sums, gdp", 4.0, 4.0, 80, 0.24)
SCENARIOS: Final = (FULL_BATCH, ADAPTIVE, SAMPLED, OWN, COUNTED, SUMS)
