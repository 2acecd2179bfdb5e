"""A batch that fails ends the worker before anybody else sees the memory it left behind."""

import subprocess
import sys

import pytest

from streams.ledger.ledger import Ledger
from streams.ledger.state import State
from streams.worker.faust_app import EXIT_RESTART
from streams.worker.ports import Ending
from streams.worker.processor import YIELD_EVERY
from tests.unit.worker.processors import Ended, Record, bench


class HalfApplied(Ledger):
    def __init__(self):
        super().__init__(0, 1)
        self.state.__class__ = Behind
        self.applied = 0

    def apply(self, offset, value):
        self.applied += 1
        if offset >= YIELD_EVERY:  # others have had their turn since the batch began
            raise MemoryError("in the middle of a batch")
        return []


class Behind(State):
    def unmerged(self):
        return ["run:d/r"]

    def take_page(self, name):
        return b"not committed"


async def test_a_merge_that_waits_for_a_failing_batch_writes_nothing() -> None:
    ledger = HalfApplied()
    made = bench(ledger)
    made.processor.start()
    await made.arrive(*map(Record, range(YIELD_EVERY + 1)))
    await made.until(lambda: ledger.applied)
    with pytest.raises(Ended):
        await made.processor.merge()  # has to wait for the batch
    assert made.ends.first.reason is Ending.FAILED
    assert isinstance(made.ends.first.error, MemoryError)
    assert (made.store.merges, made.store.commits) == ([], [])


AT_ONCE = """
import asyncio
import logging

from streams.worker.faust_app import end_process
from streams.worker.ports import Ending

logging.basicConfig(format="<%(reason)s> %(message)s")


async def main():
    asyncio.get_running_loop().call_soon(print, "another task ran")
    try:
        end_process(Ending.SLOW_COMMIT, "a text", ValueError("a cause"))
    finally:
        print("it cleaned up", flush=True)
        await asyncio.sleep(0)


asyncio.run(main())
"""


@pytest.mark.process
def test_end_process_logs_the_reason_and_runs_no_cleanup() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stderr.startswith(f"<{Ending.SLOW_COMMIT}>")
    assert "a text" in ended.stderr
    assert "a cause" in ended.stderr
    assert (ended.returncode, ended.stdout) == (EXIT_RESTART, "")
