"""Protocols of the service as a trainer uses it: a run, its roster, and the decision of a step.

``Turnstile.run`` returns such a run, over Kafka or in memory. Positions are indices in the list of
users that was enrolled; every array is in that order.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streams.sdk.arguments import UsersLike


class LevelDecision(Protocol):
    """The decision of one step. Everything but ``step`` is as secret as the data."""

    @property
    def step(self) -> int:
        """Return the step that was charged."""

    @property
    def may_be_drawn(self) -> bool:
        """Return whether an earlier attempt may have drawn this step: it must not be drawn
        again.
        """

    @property
    def admitted(self) -> NDArray[np.bool_]:
        """Return (n,), users who were charged and may be drawn."""

    @property
    def halted(self) -> NDArray[np.int64]:
        """Return the positions of users who are not admitted from this step on."""

    @property
    def readmitted(self) -> NDArray[np.int64]:
        """Return the positions of users who are admitted again from this step on."""

    @property
    def exhausted(self) -> NDArray[np.bool_]:
        """Return (n,), users who have nothing left for any step."""

    @property
    def clip_norms(self) -> NDArray[np.float64]:
        """Return (n,), the level that was charged: no contribution may be longer."""

    def clip_norms_at(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the clip norms of the users at these positions."""

    def sample(self) -> NDArray[np.int64]:
        """Draw each admitted user with an independent coin, once; return the positions,
        increasing.
        """


class ChargedAhead(Protocol):
    """A step that was sent."""

    def decision(self) -> LevelDecision:
        """Wait until it is decided."""


class LevelRoster(Protocol):
    """The users of a run, each with a level that stays until it is set again."""

    @property
    def clip_norm(self) -> float:
        """Return the highest level."""

    @property
    def may_follow_samples(self) -> bool:
        """Return whether the policy lets norm levels follow the users' own sampling coins."""

    def charge(
        self, *, noise_stddev: float, sampling_rate: float = 1.0, norms: ArrayLike | None = None
    ) -> LevelDecision:
        """Charge the next step to all admitted users, before any coin is drawn."""

    def observe(self, positions: ArrayLike, norms: ArrayLike) -> None:
        """Set levels of users who were drawn, from the next step on."""

    def set_norms(self, norms: ArrayLike, positions: ArrayLike | None = None) -> None:
        """Set levels from released outputs and the users' own data."""


@runtime_checkable
class ChargesAhead(Protocol):
    """A roster whose next step can be sent before the current one is released."""

    def charge_ahead(self, *, noise_stddev: float, sampling_rate: float = 1.0) -> ChargedAhead:
        """Send the next step to be charged, without waiting.

        Levels that are set before its decision is read apply from the step after it.
        """


class TrainingRun(Protocol):
    """One attempt of a run."""

    @property
    def dataset(self) -> str:
        """Return the name of its dataset."""

    @property
    def name(self) -> str:
        """Return its own name."""

    @property
    def attempt(self) -> int:
        """Return the number of this attempt; lower ones are fenced."""

    @property
    def step(self) -> int:
        """Return the next step to charge, or the one that was handed back."""

    def check_attempt(self) -> None:
        """Ask the service whether this attempt is the newest, right before a release."""

    def enrol(self, users: UsersLike, *, clip_norm: float, levels: int = 100) -> LevelRoster:
        """Enrol users, once and in order; after a restart the same users again."""
