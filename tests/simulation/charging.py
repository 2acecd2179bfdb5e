"""How a trainer charges the steps of one attempt: users by norms, or a roster by levels.

The norms are named, or were collected. All classes return content and decision in the same form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streams.sdk.attempt import Ahead
from streams.sdk.decisions import CollectedDecision, StepDecision
from streams.sdk.errors import Unusable
from streams.sdk.roster import Roster
from streams.sdk.roster_steps import RosterStep
from streams.sdk.run import Run
from tests.simulation.received import Content, RosterDecided
from tests.simulation.world import Wrong


class ByNorms:
    """Steps that are charged by users and norms.

    Args:
        run: the run of the steps.
        reserve: the share of each budget that has to remain, unless a step is charged ahead.
    """

    def __init__(self, run: Run, reserve: float) -> None:
        self._run, self._reserve = run, reserve

    def charge(self, content: Content) -> StepDecision:
        """Charge a step and wait for its decision."""
        about = {"noise_stddev": content.noise_stddev, "reserve": self._reserve}
        return self._run.charge(content.users, content.norms, **about)

    def charge_ahead(self, content: Content) -> Ahead[StepDecision]:
        """Send a step."""
        return self._run.charge_ahead(
            content.users, content.norms, noise_stddev=content.noise_stddev
        )

    def set_levels(self, content: Content) -> None:
        """Do nothing: a step has no content before it is charged."""

    def decided(self, content: Content, decision: StepDecision) -> tuple[Content, StepDecision]:
        """What was charged, and what became of it."""
        return content, decision


class ByLevels:
    """Steps of a roster: all members, some of them with new levels.

    Args:
        roster: the roster of the run.
        users: the members.
    """

    def __init__(self, roster: Roster, users: list[Any]) -> None:
        self._roster, self._users = roster, users

    def charge(self, content: Content) -> RosterStep:
        """Charge a step and wait for its decision."""
        self.set_levels(content)
        return self._roster.charge(noise_stddev=content.noise_stddev)

    def charge_ahead(self, content: Content) -> Ahead[RosterStep]:
        """Send a step."""
        self.set_levels(content)
        return self._roster.charge_ahead(noise_stddev=content.noise_stddev)

    def set_levels(self, content: Content) -> None:
        """Set the levels of the next step."""
        positions = [self._users.index(user) for user in content.users]
        self._roster.observe(positions, content.norms)

    def decided(self, content: Content, decision: RosterStep) -> tuple[Content, RosterDecided]:
        """Return the content that was charged, and the decision, as the step reports it now.

        A step that was handed back keeps its decision, so the content has the levels of the step.
        """
        granted = decision.clip_norms_at(np.arange(len(self._users)))
        charged = Content(self._users, granted.tolist(), content.noise_stddev)
        return charged, RosterDecided(decision.admitted, granted)


class ByEvents:
    """Steps that are charged for the norms that were collected.

    Args:
        run: the run of the steps.
        reserve: the share of each budget that has to remain.
    """

    def __init__(self, run: Run, reserve: float) -> None:
        self._run, self._reserve = run, reserve

    def charge(self, content: Content) -> CollectedDecision:
        """Charge a step with the noise of a content, and wait for its decision."""
        noise = content.noise_stddev
        return self._run.charge_collected(noise_stddev=noise, reserve=self._reserve)

    def charge_ahead(self, content: Content) -> Ahead[CollectedDecision]:
        """Raise: collected norms are not charged ahead."""
        raise NotImplementedError

    def set_levels(self, content: Content) -> None:
        """Do nothing: other clients send the norms."""

    def decided(
        self, content: Content, decision: CollectedDecision
    ) -> tuple[Content, CollectedDecision]:
        """Return the granted norms as the content, and the decision."""
        return Content(decision.users, decision.granted.tolist(), content.noise_stddev), decision


Charging = ByNorms | ByLevels | ByEvents


def check_in_progress(run: Run, charging: Charging, content: Content) -> None:
    """Check that a run with a step in progress rejects all other calls.

    Raises:
        Wrong: it accepts one.
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
