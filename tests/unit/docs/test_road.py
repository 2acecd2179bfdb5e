"""The road from a norm to its HALT is as ARCHITECTURE tells it, and stays short.

Charges go through SDK, worker and back. Wherever one is handed on (to the log, to a batch, to the
arithmetic, to the store, to the topic, to whoever waits for it) what is at work is on the road.
What checks and converts has ended by then, and can be taken at its name.
"""

import ast
import asyncio
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import streams
from accounting import advance_units
from accounting.measures import Measure
from streams import Turnstile
from streams.ledger import outputs
from streams.ledger.ledger import Channel, Ledger
from streams.sdk.connection import Waiting
from streams.sdk.memory_connection import MemoryConnection
from streams.sdk.steps import Layout, Part
from streams.worker.intake import Intake
from tests.doubles.memory_broker import MemoryClient
from tests.doubles.memory_store import MemoryStore
from tests.unit.worker.processors import Record, bench

ROOT = Path(streams.__file__).parent
STATIONS = {
    station.__code__
    for station in (
        MemoryConnection._publish,
        Intake.arrive,
        Measure.charge_units,
        advance_units,
        outputs.decision_of,
        MemoryStore.commit,
        MemoryClient.publish,
        Waiting.hear,
        Part.decided,
        Layout.put_together,
    )
}
ELSEWHERE = {"sdk/memory_connection.py"}
"""What takes the place of Kafka and Redis."""


class WithWorker(MemoryConnection):
    """Requests are applied by a worker's processor, in this thread."""

    def __init__(self) -> None:
        super().__init__(1, 10.0)
        self._loop = asyncio.new_event_loop()
        self._bench = self._loop.run_until_complete(self._started())

    async def _started(self):
        made = bench(Ledger(0, 1))
        made.processor.start()
        return made

    def _publish(self, waiting):
        before = len(self._bench.answers())
        self._loop.run_until_complete(self._decided(waiting.requests[0], before))
        for value in self._bench.answers()[before:]:
            self._hear(Channel.HALTS, 0, value)

    async def _decided(self, request, before):
        processor = self._bench.processor
        await self._bench.arrive(Record(processor.next, request, processor._leader_epoch))
        await self._bench.until(lambda: len(self._bench.answers()) > before)

    def _disconnect(self):
        self._loop.run_until_complete(self._bench.processor.close())
        self._loop.close()


@pytest.fixture(scope="module")
def road():
    """Code on the road, by file."""
    found = set()

    def look(frame, event, _argument):
        if event == "call" and frame.f_code in STATIONS:
            while frame is not None:
                found.add(frame.f_code)
                frame = frame.f_back

    with Turnstile(connection=WithWorker()) as turnstile:
        turnstile.create_dataset("d", measure="zcdp", epsilon=1.0, delta=1e-5)
        run = turnstile.run("d", "r")
        sys.setprofile(look)
        try:
            first = run.charge(np.arange(20), np.ones(20), noise_stddev=10.0)
            then = run.charge(np.arange(20), np.ones(20), noise_stddev=0.1)
        finally:
            sys.setprofile(None)
    assert first.admitted.all()
    assert then.halted.all()
    by_file = {}
    for code in found:
        path = Path(code.co_filename)
        if path.is_relative_to(ROOT) and not code.co_name.startswith("<"):
            by_file.setdefault(path.relative_to(ROOT).as_posix(), set()).add(code.co_firstlineno)
    return {file: lines for file, lines in by_file.items() if file not in ELSEWHERE}


def lines_of(file, first_lines):
    """How long these functions are, without docstrings."""
    total = 0
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if min([node.lineno, *(d.lineno for d in node.decorator_list)]) in first_lines:
            total += node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                total -= node.body[0].end_lineno - node.body[0].lineno + 1
    return total


def told():
    """The files that ARCHITECTURE names on the road."""
    text = (ROOT.parent / "ARCHITECTURE.md").read_text()
    steps = text.split("## From a norm to its HALT")[1].split("A roster takes")[0]
    return set(re.findall(r"`([a-z]+/[a-z_]+\.py)`", steps))


def test_a_newcomer_is_told_of_every_file_on_the_road(road):
    assert set(road) <= told()


def test_the_road_is_short(road):
    lengths = {file: lines_of(file, first_lines) for file, first_lines in road.items()}
    from_log_to_topic = [file for file in road if not file.startswith("sdk/")]
    assert len(from_log_to_topic) == 10, from_log_to_topic
    assert sum(lengths.values()) <= 520, lengths
