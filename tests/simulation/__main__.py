"""``python -m tests.simulation``: many seeds, or one with its trace."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext, suppress
from multiprocessing import get_context
from time import perf_counter

from tests.simulation.audit import forget
from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.simulation import simulate, traceless


def is_found(name: str, first: int, seeds: int) -> bool:
    """Print the first seed that finds a mutation, and return whether one does."""
    for runs, seed in enumerate(range(first, first + seeds), start=1):
        with mutated(name):
            outcome = simulate(seed)
        forget()
        if outcome.wrong:
            if (unchanged := simulate(seed)).wrong:
                raise SystemExit(f"seed {seed} is wrong without {name}, too: {unchanged.wrong}")
            how = outcome.wrong.splitlines()[-1]
            print(f"{name:36} seed {seed:5} after {runs:4} runs: {how:.150}", flush=True)
            return True
    print(f"{name:36} not found in {seeds} runs", flush=True)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one, with its trace")
    parser.add_argument("--processes", type=int, default=1, help="that run seeds side by side")
    parser.add_argument("--mutations", nargs="*", help="take these guarantees out; all of them")
    parser.add_argument("--mutation", help="with --seed: take this guarantee out")
    chosen = parser.parse_args()
    if chosen.mutations is not None:
        names = chosen.mutations or MUTATIONS
        found = [is_found(name, chosen.first, chosen.seeds) for name in names]
        return int(not all(found))
    if chosen.seed is not None:
        with mutated(chosen.mutation) if chosen.mutation else nullcontext():
            outcome = simulate(chosen.seed)
        for time, who, what in outcome.trace:
            print(f"{time:10.4f}  {who:12} {what}")
        print(outcome.wrong or "nothing is wrong")
        return int(outcome.wrong is not None)
    began, ran, wrong, records, steps = perf_counter(), 0, 0, 0, 0
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    with (
        get_context("spawn").Pool(chosen.processes) as pool,
        suppress(KeyboardInterrupt),  # report the seeds that have run
    ):
        for result in pool.imap_unordered(traceless, seeds, chunksize=4):
            ran += 1
            records += result.records
            steps += result.steps
            if result.wrong:
                wrong += 1
                print(f"seed {result.seed}: {result.wrong}", flush=True)
                print(f"make simulate SEED={result.seed}", flush=True)
    seconds = perf_counter() - began
    print(
        f"{ran} seeds from {chosen.first}: {wrong} wrong; {records} records, "
        f"{steps} steps decided, {60 * ran / seconds:.0f} seeds a minute"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
