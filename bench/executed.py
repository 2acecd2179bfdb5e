"""The files and lines that one charge executes, in the SDK and in a worker.

    python -m bench.executed           a table of files
    python -m bench.executed --lines   with the numbers of the lines

A charge of integer ids goes through a real broker and a real Redis. Each line of ``accounting`` and
``streams`` that runs between the call of ``Run.charge`` and the end of the worker's publishing
counts, whatever it is for. The figures are for people who judge how much code a charge needs; no
test depends on them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from bench.servers import check_running, wait_until
from streams import Turnstile
from streams.cli.main import main as turnstile_command
from streams.config import Config
from streams.local import Child, LocalStack

_TOP = Path(__file__).parents[1]
_PRODUCT = tuple(f"{_TOP / name}{os.sep}" for name in ("accounting", "streams"))
_WARM_UP = 20
_POLL = 0.02
_SETTLED = 0.3  # seconds after a charge, until the worker has emptied its outbox

Lines = dict[str, set[int]]


class Tracer:
    """Record the executed lines of the product while ``recording`` is true."""

    def __init__(self) -> None:
        self.recording = False
        self.lines: Lines = defaultdict(set)

    def install(self) -> None:
        """Trace this thread, and every thread that starts from now on."""
        threading.settrace(self._called)
        sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        if not self.recording or not frame.f_code.co_filename.startswith(_PRODUCT):
            return None
        return self._executed

    def _executed(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and self.recording:
            self.lines[frame.f_code.co_filename].add(frame.f_lineno)
        return self._executed


def _worker(directory: Path) -> None:
    """Run a worker that records while the file ``record`` exists, and then writes ``lines``."""
    tracer = Tracer()

    def follow() -> None:
        while not (directory / "record").exists():
            time.sleep(_POLL)
        tracer.recording = True
        while (directory / "record").exists():
            time.sleep(_POLL)
        tracer.recording = False
        lines = {name: sorted(numbers) for name, numbers in tracer.lines.items()}
        part = directory / "part"
        part.write_text(json.dumps(lines), encoding="utf-8")
        part.replace(directory / "lines")

    threading.Thread(target=follow, daemon=True).start()
    tracer.install()
    sys.exit(turnstile_command(["worker"]))


def measure() -> tuple[Lines, Lines]:
    """Return the lines that one charge executes in the SDK, and in the worker."""
    tracer = Tracer()
    with tempfile.TemporaryDirectory() as name, LocalStack(workers=0) as stack:
        directory = Path(name)
        record, lines = directory / "record", directory / "lines"
        config = Config(kafka=stack.kafka, redis=stack.redis)
        environment = {
            **os.environ,
            "TURNSTILE_KAFKA": stack.kafka,
            "TURNSTILE_REDIS": stack.redis,
        }
        command = [sys.executable, "-m", __spec__.name, "--worker", name]
        worker = Child("worker", command, log=directory / "log", environment=environment)
        tracer.install()
        try:
            with Turnstile(config=config) as turnstile:
                charge = _charge_often(turnstile)
                time.sleep(_SETTLED)
                record.touch()
                time.sleep(_SETTLED)
                tracer.recording = True
                charge()
                tracer.recording = False
                time.sleep(_SETTLED)
                record.unlink()
                wait_until(lines.exists, 10, lambda: check_running(worker))
        finally:
            sys.settrace(None)
            worker.stop()
        found = json.loads(lines.read_text(encoding="utf-8"))
        return tracer.lines, {name: set(numbers) for name, numbers in found.items()}


def _charge_often(turnstile: Turnstile) -> Callable[[], object]:
    """Charge until every cache is filled, and return a function that charges once more."""
    turnstile.create_dataset("population", epsilon=1.0, delta=1e-6)
    run = turnstile.run("population", "training")
    users, norms = np.arange(20), np.full(20, 0.5)

    def charge() -> object:
        return run.charge(users, norms, noise_stddev=30.0, clip_norm=1.0)

    for _ in range(_WARM_UP):
        charge()
    return charge


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.executed")
    parser.add_argument("--lines", action="store_true", help="print line numbers, too")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _worker(options.worker)
    sdk, worker = measure()
    names = sorted({*sdk, *worker})
    print(f"{'file':44} {'SDK':>6} {'worker':>6} {'both':>6}")
    for name in names:
        mine, theirs = sdk.get(name, set()), worker.get(name, set())
        short = Path(name).relative_to(_TOP).as_posix()
        print(f"{short:44} {len(mine):6} {len(theirs):6} {len(mine | theirs):6}")
        if options.lines:
            print("   ", *sorted(mine | theirs))
    total = sum(len(sdk.get(name, set()) | worker.get(name, set())) for name in names)
    in_sdk, in_worker = (sum(map(len, part.values())) for part in (sdk, worker))
    print(f"{f'{len(names)} files':44} {in_sdk:6} {in_worker:6} {total:6}")


if __name__ == "__main__":
    main()
