"""A batch that fails ends the process before anybody else sees the memory it left behind."""

import subprocess
import sys

import pytest

from streams.worker.exits import EXIT_RESTART

SCENARIO = """
import asyncio

from streams.ledger.ledger import Ledger
from tests.unit.worker.processors import Books, Record, bench


class HalfApplied(Ledger):
    def apply(self, offset, value):
        raise MemoryError("in the middle of a batch")

    def unfolded(self):
        return ["run:d/r"]

    def fold(self, name):
        return b"not committed"


class Told(Books):
    async def compact(self, *arguments):
        print("uncommitted state was written", flush=True)
        return await super().compact(*arguments)


async def main():
    processor = bench(HalfApplied(0, 1), books=Told()).processor
    processor.start()
    await processor.intake.arrive(Record(0))
    while not processor._lock.locked():
        await asyncio.sleep(0)
    await processor.compact()  # has to wait for the batch


asyncio.run(main())
"""


@pytest.mark.process
def test_a_compaction_that_waits_for_a_failing_batch_writes_nothing() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCENARIO], capture_output=True, text=True, timeout=60, check=False
    )
    assert "in the middle of a batch" in ended.stderr
    assert (ended.returncode, ended.stdout) == (EXIT_RESTART, "")
