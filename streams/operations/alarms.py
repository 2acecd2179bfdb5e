"""The alarms for an operator, the worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streams.operations.endpoints import WorkerSeen
from streams.operations.status import PartitionState

NOT_YET = "not looked at yet"
ESSENTIAL = ("Kafka", "Redis")
STALE_AFTER = 5.0
"""The seconds without an answer after which a source counts as away."""


@dataclass
class Side:
    """A source of facts about a service: Kafka, Redis or a topic."""

    problem: str | None = NOT_YET
    seen: float = 0.0  # when it last answered, on a monotonic clock; 0: never

    def is_away(self, now: float) -> bool:
        """Return whether its facts may be outdated."""
        return self.problem is not None or now - self.seen > STALE_AFTER


def alarms_of(
    sides: Mapping[str, Side],
    partitions: Sequence[Mapping[str, Any]],
    workers: Sequence[WorkerSeen],
    now: float,
) -> list[dict[str, Any]]:
    """Return all alarms, the worst first: level, what is wrong, what to do, and the subject.

    Args:
        sides: the sources, by name.
        partitions: with their ``state``, ``reason``, ``problem`` and ``remedy``.
        workers: their answers over HTTP.
        now: the time on the clock of the sources.
    """
    alarms = [
        alarm for name, side in sides.items() if (alarm := _away(name, side, now)) is not None
    ]
    for one in partitions:
        if one["state"] != PartitionState.DECIDING:
            level = "warning" if one["state"] == PartitionState.RESTORING else "wrong"
            what = f"Partition {one['partition']} is {one['state']}: {one['problem']}"
            about = {name: one[name] for name in ("partition", "state", "reason")}
            alarms.append(_alarm(level, what, one["remedy"], about))
    for worker in workers:
        if worker.problem:
            what = f"Worker {worker.address}: {worker.problem}"
            do = "Read its log; start it again if it is gone"
            alarms.append(_alarm("wrong", what, do, {"worker": worker.address}))
    return sorted(alarms, key=lambda alarm: alarm["level"] != "wrong")


def _away(name: str, side: Side, now: float) -> dict[str, Any] | None:
    is_essential = name in ESSENTIAL
    if side.problem == NOT_YET and not is_essential:
        return None
    is_stale = is_essential and side.seen > 0 and side.is_away(now)
    if side.problem is None and not is_stale:
        return None
    old = f"The facts are {now - side.seen:.0f} s old. " if side.seen and is_essential else ""
    do = (
        f"Nothing is decided without it. Start {name}, or set TURNSTILE_{name.upper()}; "
        "`turnstile doctor` has details. This page recovers without a reload"
        if is_essential
        else "The other facts are still shown"
    )
    if side.problem == NOT_YET:
        return _alarm("warning", f"{name}: {NOT_YET}", "Wait a moment", {"side": name})
    level = "wrong" if is_essential else "warning"
    what = f"{name}: {side.problem or 'does not answer'}"
    return _alarm(level, what, f"{old}{do}", {"side": name})


def _alarm(level: str, what: str, do: str, about: Mapping[str, Any]) -> dict[str, Any]:
    return {"level": level, "what": what, "do": do, "about": about}
