"""``python -m tests.chaos``: the real service under faults of every kind, and an audit at the end.

Trainers charge and never give up; faults come one after the other, or on top of each other. When
the time is over everything heals, all that was published is decided, and an auditor that shares no
code with the workers applies the log once more: state, decisions, refusals, odometers and what the
trainers were told have to be as it says.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos import trainer
from tests.chaos.faults import FAULTS, suiting
from tests.chaos.lanes import Lane, check_told, lanes_of_a_training
from tests.chaos.scene import Scene, Shape, scene
from tests.integration.service import Service

_PACE = 0.25
"""Seconds between two steps of a trainer."""
_TIMEOUT, _SECURE_TIMEOUT = 4.0, 15.0
"""Seconds after which a charge is repeated. Six clients of one process that log in again at once,
each with TLS, take some: less would have them give up before they can hear anything."""
_LONGEST_GAP = 4.0
"""Seconds between two faults; a third of them come at once after the one before."""
_RECOVERS_WITHIN = 180.0
"""Seconds after which an operator looks at what has stopped, while all wait for something."""
_CALM_EVERY = 12
"""After so many faults everything has to get on again."""


class Stuck(AssertionError):
    """A trainer is not answered although nothing is wrong any more."""


def main() -> int:
    """Run for so many minutes; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="The real service under faults of every kind, and an audit at the end.",
        epilog="faults: " + ", ".join(FAULTS),
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of faults (default: 5)")
    parser.add_argument("--seed", type=int, default=None, help="of the order of faults")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--brokers", type=int, default=1, help="3: one may be lost")
    parser.add_argument("--redis", choices=["alone", "cluster"], default="alone")
    parser.add_argument("--secure", action="store_true", help="with logins, rights and signatures")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="FAULT")
    options = parser.parse_args()
    has_cluster = options.redis == "cluster"
    if options.secure and has_cluster:
        parser.error("a secure service has one Redis: leave out --redis cluster (REDIS=cluster)")
    shape = Shape(options.workers, options.partitions, options.brokers, has_cluster, options.secure)
    kinds = [name for name in suiting(shape) if name in options.only]
    if not kinds:
        parser.error("none of these faults can happen to such a service")
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    console = Console()
    console.print(f"seed {seed}, {options.minutes:g} minutes")
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    console.print(f"logs and data are in {directory}")
    with scene(directory, shape) as stage:
        timeout = _SECURE_TIMEOUT if shape.is_secure else _TIMEOUT
        lanes = lanes_of_a_training(replace(stage.trains, timeout=timeout), seed, _PACE)
        rng = random.Random(seed)
        try:
            counted = _unleash(stage, lanes, rng, options.minutes * 60, kinds, console)
        finally:
            for lane in lanes:
                lane.stop(60.0)
            stage.trainer.stop()
        with closing(Service(stage.stack, stage.looks)) as service:
            console.print("everything is healed: the audit")
            summary = _audited(service, stage, lanes)
    shutil.rmtree(directory)  # after a failure it stays
    console.print(_table("Faults", counted))
    console.print(_table("Audited, wrong: 0", summary))
    return 0


def _unleash(
    stage: Scene,
    lanes: list[Lane[object]],
    rng: random.Random,
    seconds: float,
    kinds: list[str],
    console: Console,
) -> Counter[str]:
    counted: Counter[str] = Counter()
    stage.trainer.start()
    for lane in lanes:
        lane.start()
    _calm(stage, lanes)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        kind = rng.choice(kinds)
        console.print(f"{time.strftime('%H:%M:%S')}  {kind}", highlight=False)
        FAULTS[kind](stage, rng)
        counted[kind] += 1
        if rng.random() < 2 / 3:
            time.sleep(rng.uniform(0.0, _LONGEST_GAP))
        if counted.total() % _CALM_EVERY == 0:
            _calm(stage, lanes)
    stage.clock.write_text("0")
    _calm(stage, lanes)
    return counted


def _calm(stage: Scene, lanes: list[Lane[object]]) -> None:
    """Wait until every trainer has been told some more steps."""
    goals = [lane.decided + 3 for lane in lanes]
    released = sum(1 for _ in trainer.released(stage.trainer.released)) + 3
    deadline = time.monotonic() + _RECOVERS_WITHIN
    while True:
        for lane in lanes:
            if lane.error is not None:
                raise lane.error
        behind = [
            f"{lane.current}/{lane.name}"
            for lane, goal in zip(lanes, goals, strict=True)
            if lane.decided < goal
        ]
        if sum(1 for _ in trainer.released(stage.trainer.released)) < released:
            behind.append(f"{trainer.DATASET}/{trainer.RUN}")
        if not behind:
            return
        if time.monotonic() > deadline:
            raise Stuck(f"not decided within {_RECOVERS_WITHIN:g} s: {', '.join(behind)}")
        time.sleep(0.2)


def _audited(service: Service, stage: Scene, lanes: list[Lane[object]]) -> Counter[str]:
    audit = service.audit()
    told = check_told(audit, lanes)
    decisions = {
        (d["dataset"], d["run"], d["step"], d["partition"]): d for d in audit.charged.values()
    }
    steps = list(trainer.released(stage.trainer.released))
    assert [line["step"] for line in steps] == list(range(len(steps))), "a step twice, or none"
    for line in steps:
        halted = {
            user
            for partition in range(service.partitions)
            for user in decisions[trainer.DATASET, trainer.RUN, line["step"], partition]["halted"]
        }
        assert halted == set(line["halted"]), f"step {line['step']} was told otherwise"
    users = sum(d.get("users", d.get("members", 0)) for d in audit.charged.values())
    return Counter(
        {
            "records of the log": len(service.log.records["norms"]),
            "records refused": len(audit.rejects),
            "decisions": len(audit.charged),
            "users decided": users,
            "steps told to trainers": told,
            "steps released by the trainer that is killed": len(steps),
            "charges repeated": sum(lane.retried for lane in lanes),
            "runs opened again": sum(lane.reopened for lane in lanes),
            "steps decided that nobody was told": sum(lane.unheard for lane in lanes),
            "workers started again": sum(worker.restarts for worker in stage.stack.workers),
        }
    )


def _table(title: str, counted: Counter[str]) -> Table:
    table = Table("", "", title=title, show_header=False)
    table.columns[1].justify = "right"
    for name, count in counted.items():
        table.add_row(name, f"{count:,}")
    return table


if __name__ == "__main__":
    sys.exit(main())
