"""The command of the fuzzer."""

import argparse
import time

from tests.fuzz.watch import LOG_RECORDS, Fuzz, Watch, apply_largest


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Fuzz the ledger with records."
    )
    parser.add_argument("records", type=int, nargs="?", default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first log; others follow")
    options = parser.parse_args()
    watch, began = Watch(), time.monotonic()
    seed = options.seed
    while watch.records < options.records:
        Fuzz(seed, watch).run(min(LOG_RECORDS, options.records - watch.records))
        seed += 1
    apply_largest(watch)
    print(watch.report())
    seconds = time.monotonic() - began
    print(f"seeds {options.seed} to {seed - 1}, {seconds:.0f} s: {watch.records / seconds:.0f}/s")


if __name__ == "__main__":
    main()
