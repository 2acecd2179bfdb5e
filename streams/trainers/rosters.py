"""What a trainer needs of the service: a run, its roster, and the decision of a step.

``Turnstile.run`` gives such a run, over Kafka or in memory. Positions are places in the list of
users that was enrolled; so is the order of every array.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray


class RosterDecision(Protocol):
    """What was decided of one step. All but ``step`` is as secret as the data."""

    @property
    def step(self) -> int:
        """The step that was charged."""

    @property
    def may_be_drawn(self) -> bool:
        """Whether an earlier attempt may have drawn this step: it must not be drawn again."""

    @property
    def admitted(self) -> NDArray[np.bool_]:
        """(n,), who was charged and may be drawn."""

    @property
    def halted(self) -> NDArray[np.int64]:
        """Positions that left with this step."""

    @property
    def readmitted(self) -> NDArray[np.int64]:
        """Positions that came back with this step."""

    @property
    def exhausted(self) -> NDArray[np.bool_]:
        """(n,), who has nothing left for any step."""

    @property
    def clip_norms(self) -> NDArray[np.float64]:
        """(n,), the level that was charged: no contribution may be longer."""

    def clip_norms_at(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Those of these users."""

    def sample(self) -> NDArray[np.int64]:
        """Draw each admitted user with an independent coin, once: positions, increasing."""


class ChargedAhead(Protocol):
    """A step that was sent."""

    def decision(self) -> RosterDecision:
        """Wait until it is decided."""


class Roster(Protocol):
    """Users of a run, each with a level that stays until it is set anew."""

    @property
    def clip_norm(self) -> float:
        """The highest level."""

    @property
    def may_follow_samples(self) -> bool:
        """Whether the policy lets norm levels follow the users' own sampling coins."""

    def charge(
        self, *, noise_stddev: float, sampling_rate: float = 1.0, norms: ArrayLike | None = None
    ) -> RosterDecision:
        """Charge the next step to everybody who is admitted, before any coin falls."""

    def observe(self, positions: ArrayLike, norms: ArrayLike) -> None:
        """Set levels of users who were drawn, from the next step on."""

    def set_norms(self, norms: ArrayLike, positions: ArrayLike | None = None) -> None:
        """Set levels from released outputs and the users' own data."""


@runtime_checkable
class ChargesAhead(Protocol):
    """A roster whose next step can be sent before this one is released."""

    def charge_ahead(self, *, noise_stddev: float, sampling_rate: float = 1.0) -> ChargedAhead:
        """Send the next step to be charged, and do not wait.

        Levels that are set before its decision is taken hold from the step after it.
        """


class TrainingRun(Protocol):
    """One attempt of a run."""

    @property
    def dataset(self) -> str:
        """Its dataset."""

    @property
    def name(self) -> str:
        """Its own name."""

    @property
    def attempt(self) -> int:
        """Which attempt of the run this is; lower ones are fenced."""

    @property
    def step(self) -> int:
        """The next step to charge, or the one that was handed back."""

    def check_attempt(self) -> None:
        """Ask the service whether this attempt still holds, right before a release leaves."""

    def enrol(self, users: ArrayLike, *, clip_norm: float, levels: int = 100) -> Roster:
        """Enrol users, once and in order; again after a restart: the same."""
