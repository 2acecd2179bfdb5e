"""The jobs of the nightly lane: ``make nightly``.

    python -m tests.nightly                       all jobs that have not passed in this night
    python -m tests.nightly --only faults fuzz    these jobs, whether they have passed or not
    python -m tests.nightly --list                the jobs and their commands

A night is a UTC date and a commit. Jobs that passed are remembered in ``out/nightly``, so an
interrupted run continues where it ended. The seeds follow from the date: each night has new ones,
and ``--night YYYYMMDD`` repeats those of another night. Each job prints to its own log file.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).parents[1]
STATE = TOP / "out" / "nightly"
YEAR_OF_ANSWERS = TOP / "examples" / "notebooks" / "year-of-answers.ipynb"
"""A notebook that answers a year of days from a data frame, which takes most of a minute."""


class Job(NamedTuple):
    """A command."""

    name: str
    command: tuple[str, ...]


def jobs(night: str) -> list[Job]:
    """Return the jobs of a night, the shortest first."""
    python = (sys.executable, "-m")
    pytest = (*python, "pytest", "-q", "--dist", "worksteal")
    cores = os.cpu_count() or 2
    return [
        Job("notebook", (*python, "tests.notebooks", str(YEAR_OF_ANSWERS))),
        Job("faults", (*pytest, "-n", str(cores + 1), "-m", "fault", "tests/integration")),
        Job("attack", (*python, "tests.attack", "--seed", night, "--processes", str(cores))),
        Job("fuzz", (*python, "tests.fuzz", "--seed", night, "1000000")),
        Job(
            "simulate",
            (
                *(*python, "tests.simulation", "--seeds", "10000"),
                *("--first", str(int(night) * 100_000), "--processes", str(cores)),
            ),
        ),
        Job("mutations", (*python, "tests.simulation", "--mutations", "--seeds", "2000")),
        Job("chaos", (*python, "tests.chaos", "--minutes", "20", "--seed", night)),
        Job(
            "thorough",
            (
                *(*pytest, "-n", "auto", "-m", "(hypothesis or thorough) and not process"),
                *("--hypothesis-profile", "thorough", "--ignore=tests/integration", "tests"),
            ),
        ),
    ]


def main() -> int:
    """Run the jobs, print a table, and return 1 if a job failed."""
    today = datetime.now(UTC).strftime("%Y%m%d")
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description=__doc__)
    names = [job.name for job in jobs(today)]
    parser.add_argument("--only", nargs="+", choices=names, help="run these jobs, even again")
    parser.add_argument("--night", default=today, help="the date that gives the seeds: YYYYMMDD")
    parser.add_argument("--list", action="store_true", help="print the jobs and their commands")
    options = parser.parse_args()
    chosen = [job for job in jobs(options.night) if job.name in (options.only or names)]
    if options.list:
        for job in chosen:
            print(job.name, " ".join(job.command[1:]), sep="\t")
        return 0
    directory = STATE / f"{options.night}-{_commit()}"
    directory.mkdir(parents=True, exist_ok=True)
    results = {job.name: _run(job, directory, again=bool(options.only)) for job in chosen}
    for name, result in results.items():
        print(f"{name:12} {result}")
    return int(any(result.startswith("FAILED") for result in results.values()))


def _run(job: Job, directory: Path, *, again: bool) -> str:
    """Run a job unless it has passed, and return its result in words."""
    passed, log = directory / f"{job.name}.passed", directory / f"{job.name}.log"
    if passed.exists() and not again:
        return f"passed before: {passed.read_text(encoding='utf-8')}"
    print(f"{job.name}: {log.relative_to(TOP)}", flush=True)
    passed.unlink(missing_ok=True)
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            job.command,
            cwd=TOP,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        for line in process.stdout:
            output.write(line)
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
    taken = f"{(time.monotonic() - began) / 60:.1f} minutes"
    if process.wait() != 0:
        return f"FAILED with exit code {process.returncode} after {taken}; see {log}"
    passed.write_text(taken, encoding="utf-8")
    return f"passed in {taken}"


def _commit() -> str:
    """Return the short hash of the commit, with a mark if files were changed since."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
