"""``python -m tests.simulation``: many seeds, or one with its trace."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext, suppress
from time import perf_counter

from tests.simulation.audit import forget
from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.simulation import simulate


def found(name: str, first: int, seeds: int) -> str:
    """Which seed finds that a guarantee is missing, and how."""
    for runs, seed in enumerate(range(first, first + seeds), start=1):
        with mutated(name):
            outcome = simulate(seed)
        forget()
        if outcome.wrong:
            how = outcome.wrong.splitlines()[-1]
            return f"{name:36} seed {seed:5} after {runs:4} runs: {how:.150}"
    return f"{name:36} not found in {seeds} runs"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one, with its trace")
    parser.add_argument("--mutations", nargs="*", help="take these guarantees out; all of them")
    parser.add_argument("--mutation", help="with --seed: take this guarantee out")
    chosen = parser.parse_args()
    if chosen.mutations is not None:
        for name in chosen.mutations or MUTATIONS:
            print(found(name, chosen.first, chosen.seeds), flush=True)
        return 0
    if chosen.seed is not None:
        with mutated(chosen.mutation) if chosen.mutation else nullcontext():
            outcome = simulate(chosen.seed)
        for time, who, what in outcome.trace:
            print(f"{time:10.4f}  {who:12} {what}")
        print(outcome.wrong or "nothing is wrong")
        return int(outcome.wrong is not None)
    began, ran, wrong, records, told = perf_counter(), 0, 0, 0, 0
    with suppress(KeyboardInterrupt):  # what was run by then is told
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            outcome = simulate(seed)
            forget()
            ran += 1
            records += outcome.records
            told += outcome.told
            if outcome.wrong:
                wrong += 1
                print(f"seed {seed}: {outcome.wrong}\nmake simulate SEED={seed}", flush=True)
    seconds = perf_counter() - began
    print(
        f"{ran} seeds from {chosen.first}: {wrong} wrong; {records} records, {told} steps told, "
        f"{60 * ran / seconds:.0f} seeds a minute"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
