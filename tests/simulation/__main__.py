"""``python -m tests.simulation``: many seeds, or one with its trace."""

from __future__ import annotations

import argparse
import sys
from time import perf_counter

from tests.simulation.audit import forget
from tests.simulation.simulation import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one, with its trace")
    chosen = parser.parse_args()
    if chosen.seed is not None:
        outcome = simulate(chosen.seed)
        for time, who, what in outcome.trace:
            print(f"{time:10.4f}  {who:12} {what}")
        print(outcome.wrong or "nothing is wrong")
        return int(outcome.wrong is not None)
    began, wrong, records, told = perf_counter(), 0, 0, 0
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        outcome = simulate(seed)
        forget()
        records += outcome.records
        told += outcome.told
        if outcome.wrong:
            wrong += 1
            print(f"seed {seed}: {outcome.wrong}\nmake simulate SEED={seed}", flush=True)
    seconds = perf_counter() - began
    print(
        f"{chosen.seeds} seeds from {chosen.first}: {wrong} wrong; {records} records, {told} steps "
        f"told, {60 * chosen.seeds / seconds:.0f} seeds a minute"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
