"""`turnstile publish`: the steps of a file, each charged once however often the file is sent.

A line says which step of its run it is: by its ``step``, else by its place among the lines of its
dataset and run. So a line means the same step whenever it is sent:

    before the last step decided    skipped, and said so
    the last step decided           sent again: the decision comes back, nothing is charged twice
    the next step                   charged
    a later one                     an error, since a step between is missing
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec

from streams.cli.output import Exit, UnusableInput, note, show
from streams.config import Config
from streams.schemas import Counter, MinSeparation, Name, User
from streams.sdk.client import Turnstile
from streams.sdk.run import Run


class PublishedStep(msgspec.Struct, forbid_unknown_fields=True):
    """One line of the file."""

    dataset: Name
    run: Name
    users: list[User]
    norms: list[float]
    noise_stddev: float
    clip_norm: float | None = None
    step: Counter | None = None  # else the place among the lines of its dataset and run
    min_separation: MinSeparation | None = None  # of the run; else as it was opened before


def publish(options: argparse.Namespace, config: Config) -> int:
    """Charge the steps of a file, in order, and show each decision."""
    with Turnstile(config=config) as turnstile:
        steps = StepsOfFile(turnstile, take_over=options.take_over)
        for number, line in _lines(options.file):
            if not line.strip():
                continue
            try:
                show(steps.charge(_read(line)), options.json)
            except Exception as error:
                error.add_note(f"{options.file}, line {number}")
                raise
    if steps.skipped:
        note(
            f"{steps.skipped} steps had been decided before and were skipped. Lines without a "
            "step count from 0 in each file: to go on with a run, say which step they are"
        )
    return Exit.OK


@dataclass
class _Lane:
    """The lines of one dataset and run."""

    run: Run
    numbered: bool  # whether its lines say their step
    lines: int = 0


class StepsOfFile:
    """Charges lines one after the other.

    Attributes:
        skipped: how many were decided before.
    """

    def __init__(self, turnstile: Turnstile, *, take_over: bool = False) -> None:
        self.skipped = 0
        self._turnstile, self._take_over = turnstile, take_over
        self._lanes: dict[tuple[str, str], _Lane] = {}

    def charge(self, line: PublishedStep) -> dict[str, Any]:
        """Charge one line, or find that it was decided; what to show of it.

        Raises:
            UnusableInput: a step before it is missing.
            TurnstileError: whatever the charge raises.
        """
        key = line.dataset, line.run
        lane = self._lanes.get(key)
        if lane is None:
            run = self._turnstile.run(
                *key, min_separation=line.min_separation, take_over=self._take_over
            )
            lane = self._lanes[key] = _Lane(run, numbered=line.step is not None)
        separation = lane.run.min_separation
        if line.min_separation not in (None, separation):
            raise UnusableInput(
                f"min_separation is {line.min_separation}, but run {line.run!r} was opened with "
                f"{separation or 'none'}: say the same in all lines of a run"
            )
        step = self._place(lane, line)
        shown = {"dataset": line.dataset, "run": line.run, "step": step, "users": len(line.users)}
        decided_before = step < lane.run.step
        if step == lane.run.step - 1 and not lane.run.interrupted:
            # Handed back, as if nobody had heard of its decision yet.
            lane.run = self._turnstile.run(*key, released=step - 1)
        if step < lane.run.step:
            self.skipped += 1
            return {**shown, "decided": "before"}
        if step > lane.run.step:
            raise UnusableInput(
                f"this is step {step} of run {line.run!r} and the next one is {lane.run.step}: "
                "a step between is missing"
            )
        decision = lane.run.charge(
            line.users, line.norms, noise_stddev=line.noise_stddev, clip_norm=line.clip_norm
        )
        left_out = {"halted": decision.halted}
        if separation is not None:
            left_out["too_soon"] = decision.too_soon
        return {
            **shown,
            "decided": "before" if decided_before else "now",
            "admitted": int(decision.admitted.sum()),
            **{why: int(whom.sum()) for why, whom in left_out.items()},
            "exhausted": int(decision.exhausted.sum()),
            **{
                f"{why}_users": [
                    user for user, out in zip(line.users, whom.tolist(), strict=True) if out
                ]
                for why, whom in left_out.items()
            },
        }

    @staticmethod
    def _place(lane: _Lane, line: PublishedStep) -> int:
        if lane.numbered != (line.step is not None):
            raise UnusableInput(
                f"some lines of run {line.run!r} say their step and some do not: say all or none"
            )
        place = lane.lines if line.step is None else line.step
        lane.lines += 1
        return place


def _read(line: bytes) -> PublishedStep:
    try:
        return msgspec.json.decode(line, type=PublishedStep)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableInput(_A_PATTERN.sub(_A_NAME, str(error))) from error


_A_PATTERN = re.compile(r"Expected `str` matching regex '[^']*'")
_A_NAME = (
    "Expected a name of 1 to 128 letters, digits, dots, dashes and underscores, a letter or digit "
    "first"
)


def _lines(name: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, or of standard input, with their numbers."""
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb") as lines:
            yield from enumerate(lines, start=1)
    except (OSError, ValueError) as error:
        raise UnusableInput(f"cannot read {name}: {error}") from error
