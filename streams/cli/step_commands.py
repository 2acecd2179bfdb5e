"""The command that charges the steps of a file."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec

from streams.cli.commands import command
from streams.cli.options import (
    FILE_CLIENT,
    TAKE_OVER,
    arg,
)
from streams.cli.printing import UnusableInput, note, show
from streams.cli.subjects import client_of
from streams.config import Config
from streams.failures import Exit
from streams.records import Counter, MinSeparation, Name, User
from streams.sdk.client import Turnstile
from streams.sdk.run import Run


class PublishedStep(msgspec.Struct, forbid_unknown_fields=True):
    """One line of a file of steps."""

    dataset: Name
    run: Name
    users: list[User]
    norms: list[float]
    noise_stddev: float
    clip_norm: float | None = None
    step: Counter | None = None  # else its place among the lines of its dataset and run
    min_separation: MinSeparation | None = None  # of the run; None: as it was opened


@command(
    "publish",
    FILE_CLIENT,
    arg("file FILE.jsonl", "the file, or - for standard input"),
    TAKE_OVER,
    lines=("step",),
)
def publish(options: argparse.Namespace, config: Config) -> int:
    """Charge the steps of a JSON Lines file, each once even if the file is sent again.

    A line is one step: dataset, run, users, norms, noise_stddev, and optionally clip_norm, step and
    the min_separation of the run. A line without step is the next one of its dataset and run in
    this file, from 0. Steps that were decided before are not charged again.
    """
    lanes: dict[tuple[str, str], _Lane] = {}
    skipped = 0

    def steps() -> Iterator[Mapping[str, Any]]:
        nonlocal skipped
        for number, line in _lines(options.file):
            if not line.strip():
                continue
            try:
                step = _charge(turnstile, lanes, _read(line), options.take_over)
            except Exception as error:
                error.add_note(f"{options.file}, line {number}")
                raise
            skipped += "admitted" not in step
            yield step

    with client_of(config) as turnstile:
        show("step", steps(), options.json, _STEP, follow=True)
    if skipped:
        note(
            f"{skipped} steps had been decided before and were skipped. Lines without a step "
            "count from 0 in each file: to continue a run, add the number of the step"
        )
    return Exit.OK


_STEP = ("dataset", "run", "step", "users", "decided", "admitted", "halted", "exhausted")


@dataclass
class _Lane:
    """The lines of one dataset and run."""

    run: Run
    numbered: bool  # whether its lines have a step
    lines: int = 0


def _charge(
    turnstile: Turnstile,
    lanes: dict[tuple[str, str], _Lane],
    line: PublishedStep,
    take_over: bool,
) -> dict[str, Any]:
    """Charge one line, unless it was decided before, and return the fields to show.

    A line is a step of its run: the one that its ``step`` says, else its place among the lines of
    its dataset and run. So a line means the same step if the file is sent again:

        before the last decided step    skipped, and reported
        the last decided step           sent again: the same decision returns, charged once
        the next step                   charged
        a later step                    an error, because a step in between is missing

    Raises:
        UnusableInput: a step before it is missing.
        TurnstileError: the charge failed.
    """
    key = line.dataset, line.run
    lane = lanes.get(key)
    if lane is None:
        run = turnstile.run(*key, min_separation=line.min_separation, take_over=take_over)
        lane = lanes[key] = _Lane(run, numbered=line.step is not None)
    separation = lane.run.min_separation
    if line.min_separation not in (None, separation):
        raise UnusableInput(
            f"min_separation is {line.min_separation}, but run {line.run!r} was opened with "
            f"{separation or 'none'}: give the same value in all lines of a run"
        )
    if lane.numbered != (line.step is not None):
        raise UnusableInput(
            f"some lines of run {line.run!r} have a step and some have none: give all or none"
        )
    step = lane.lines if line.step is None else line.step
    lane.lines += 1
    shown = {"dataset": line.dataset, "run": line.run, "step": step, "users": len(line.users)}
    decided_before = step < lane.run.step
    if step == lane.run.step - 1 and not lane.run.interrupted:
        # Open the run again as if this decision had not been received.
        lane.run = turnstile.run(*key, released=step - 1)
    if step < lane.run.step:
        return {**shown, "decided": "before"}
    if step > lane.run.step:
        raise UnusableInput(
            f"this is step {step} of run {line.run!r}, and the next one is {lane.run.step}: "
            "a step in between is missing"
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


def _read(line: bytes) -> PublishedStep:
    try:
        return msgspec.json.decode(line, type=PublishedStep)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = _A_PATTERN.sub(_A_NAME, str(error))
        if "unknown field" in problem:
            problem += f". Known are {', '.join(PublishedStep.__struct_fields__)}"
        raise UnusableInput(problem) from error


_A_PATTERN = re.compile(r"Expected `str` matching regex '[^']*'")
_A_NAME = (
    "Expected a name of 1 to 128 letters, digits, dots, dashes and underscores, the first a letter "
    "or digit"
)


def _lines(name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file, or of standard input, with their numbers."""
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb") as lines:
            yield from enumerate(lines, start=1)
    except (OSError, ValueError) as error:
        raise UnusableInput(f"cannot read {name}: {error}") from error
