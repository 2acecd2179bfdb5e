"""A batch that fails ends the process before anybody else sees the memory it left behind."""

import subprocess
import sys

from streams.worker.exits import EXIT_RESTART

SCENARIO = """
import asyncio
from types import SimpleNamespace

from streams.ledger import Ledger
from streams.redis_store import Snapshot, Verdict
from streams.worker.processor import Processor


class HalfApplied(Ledger):
    def apply(self, offset, value):
        raise MemoryError("in the middle of a batch")

    def unfolded(self):
        return ["run:d/r"]

    def fold(self, name):
        return b"not committed"


class Store:
    async def fold(self, *arguments, **more):
        print("uncommitted state was written", flush=True)
        return Verdict.OK


async def main():
    snapshot = Snapshot(next=0, owner="me", folded={}, deltas=[], outbox=[])
    processor = Processor(HalfApplied(0, 1), snapshot, "me", store=Store(), publisher=None)
    processor.start()
    await processor.arrive(SimpleNamespace(offset=0, value=b"record"))
    while not processor._lock.locked():
        await asyncio.sleep(0)
    await processor.fold()  # has to wait for the batch


asyncio.run(main())
"""


def test_a_fold_that_waits_for_a_failing_batch_writes_nothing() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCENARIO], capture_output=True, text=True, timeout=60, check=False
    )
    assert "in the middle of a batch" in ended.stderr
    assert (ended.returncode, ended.stdout) == (EXIT_RESTART, "")
