"""Attack the software and broken versions of it, and print what was found.

    python -m tests.attack                  everything, about ten minutes on two cores
    python -m tests.attack --quick          fewer runs; the bounds are weaker
    python -m tests.attack --seed 20260101

The exit code is 1 if an attack on the software exceeds its claim, or if a broken version is not
found. Each bound is wrong with probability 1e-5 if the software attains its claim exactly.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from typing import NamedTuple

from tests.attack.audit import ERROR, Effort, Found, attack
from tests.attack.mutants import SEEN, UNSEEN
from tests.attack.scenarios import SCENARIOS, Scenario

FULL = Effort(runs=64, canaries=400)
QUICK = Effort(runs=8, canaries=200)


class Case(NamedTuple):
    """A scenario of the software, or of a broken version of it."""

    broken: str
    scenario: Scenario
    seed: int
    effort: Effort


def cases(seed: int, effort: Effort) -> list[Case]:
    """Return all attacks, the software itself first."""
    whole = [("", scenario) for scenario in SCENARIOS]
    seen = [(mutant.name, scenario) for mutant in SEEN for scenario in mutant.scenarios]
    unseen = [(mutant.name, mutant.scenario) for mutant in UNSEEN]
    less = effort._replace(runs=max(8, effort.runs // 2))
    return [
        Case(name, scenario, seed * 1000 + number, less if name else effort)
        for number, (name, scenario) in enumerate([*whole, *seen, *unseen])
    ]


def attacked(case: Case) -> list[Found]:
    """Run one case, with the software broken if it says so."""
    broken = {mutant.name: mutant.broken for mutant in (*SEEN, *UNSEEN)}
    with broken[case.broken]() if case.broken else nullcontext():
        return attack(case.scenario, case.seed, case.effort)


def is_found(name: str) -> bool:
    """Return whether the test of an unseen mutant passes without it and fails with it."""
    (mutant,) = (one for one in UNSEEN if one.name == name)
    mutant.test()
    with mutant.broken():
        try:
            mutant.test()
        except AssertionError:
            return True
    return False


def main() -> int:
    """Run everything, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of canaries, coins and noise")
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    listed = cases(options.seed, QUICK if options.quick else FULL)
    delta = listed[0].scenario.delta
    print(
        f"Lower bounds on epsilon at delta {delta:g}, and the claims. Confidence: {1 - ERROR:.5%}, "
        "each bound by itself."
    )
    print()
    print("| software | scenario | canaries | stay until step | claim | ratio | curve | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    failures = []
    unseen = {mutant.name for mutant in UNSEEN}
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        for case, found in zip(listed, pool.map(attacked, listed), strict=True):
            exceeds = any(each.exceeds for each in found)
            for each in found:
                verdict = "exceeds the claim" if each.exceeds else ""
                print(_row(case.broken or "as it is", each, verdict), flush=True)
            if not case.broken and exceeds:
                failures.append(f"{case.scenario.name}: an attack exceeds the claim")
            if case.broken and case.broken not in unseen and not exceeds:
                failures.append(f"{case.broken}, {case.scenario.name}: no canary finds it")
    print()
    for mutant in UNSEEN:
        name = f"{mutant.test.__module__.replace('.', '/')}.py::{mutant.test.__name__}"
        finds = is_found(mutant.name)
        print(f"{mutant.name}: {'found' if finds else 'NOT found'} by {name}")
        if not finds:
            failures.append(f"{mutant.name}: {name} passes")
    for failure in failures:
        print(f"FAILED: {failure}")
    return int(bool(failures))


def _row(software: str, found: Found, verdict: str) -> str:
    shown = [f"{bound:.2f}" for bound in (found.claimed, found.ratio, found.curve)]
    cells = [software, found.scenario, found.group, str(found.lasted), *shown, verdict]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
