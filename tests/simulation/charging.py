"""How a trainer charges the steps of one attempt: users by their norms, or a roster by levels.

Both tell in the same words what was charged and what became of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streams.sdk.attempt import Ahead
from streams.sdk.decisions import StepDecision
from streams.sdk.errors import Unusable
from streams.sdk.roster import Roster
from streams.sdk.roster_steps import RosterStep
from streams.sdk.run import Run
from tests.simulation.told import Content, RosterDecided
from tests.simulation.world import Wrong


class ByNorms:
    """Steps that name their users.

    Args:
        run: that they are of.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def charge(self, content: Content) -> StepDecision:
        """Charge a step and wait for its decision."""
        return self._run.charge(content.users, content.norms, noise_stddev=content.noise_stddev)

    def charge_ahead(self, content: Content) -> Ahead[StepDecision]:
        """Send a step."""
        return self._run.charge_ahead(
            content.users, content.norms, noise_stddev=content.noise_stddev
        )

    def say(self, content: Content) -> None:
        """Nothing is said of a step before it is charged."""

    def heard(self, content: Content, decision: StepDecision) -> tuple[Content, StepDecision]:
        """What was charged, and what became of it."""
        return content, decision


class ByLevels:
    """Steps of a roster: everybody, some of them at other levels than before.

    Args:
        roster: of the run.
        users: who are on it.
    """

    def __init__(self, roster: Roster, users: list[Any]) -> None:
        self._roster, self._users = roster, users

    def charge(self, content: Content) -> RosterStep:
        """Charge a step and wait for its decision."""
        self.say(content)
        return self._roster.charge(noise_stddev=content.noise_stddev)

    def charge_ahead(self, content: Content) -> Ahead[RosterStep]:
        """Send a step."""
        self.say(content)
        return self._roster.charge_ahead(noise_stddev=content.noise_stddev)

    def say(self, content: Content) -> None:
        """The levels of the next step that is sent."""
        positions = [self._users.index(user) for user in content.users]
        self._roster.observe(positions, content.norms)

    def heard(self, content: Content, decision: RosterStep) -> tuple[Content, RosterDecided]:
        """What was charged, and what became of it, as the step says now.

        A step that was handed back is as it was decided, so that levels are those it tells.
        """
        granted = decision.clip_norms_at(np.arange(len(self._users)))
        heard = Content(self._users, granted.tolist(), content.noise_stddev)
        return heard, RosterDecided(decision.admitted, granted)


Charging = ByNorms | ByLevels


def check_under_way(run: Run, charging: Charging, content: Content) -> None:
    """Whether a run whose step is under way does nothing else.

    Raises:
        Wrong: it does.
    """
    for ask in (
        lambda: charging.charge(content),
        lambda: charging.charge_ahead(content),
        run.abandon,
        run.close,
    ):
        try:
            ask()
        except Unusable:
            continue
        raise Wrong(f"step {run.step} of {run.name} of {run.dataset} is under way, and no more")
