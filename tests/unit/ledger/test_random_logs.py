"""Ledger, auditor and every later owner agree about random logs."""

from itertools import chain
from random import Random

import pytest

from streams.ledger import collecting, parts
from streams.records.json_outputs import to_json, to_msgpack
from tests.audit import auditor_charges
from tests.unit.ledger.ledgers import MergingWorker, rebuilt
from tests.unit.ledger.random_logs import RandomLog

SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 16))]


@pytest.mark.usefixtures("short_pages")
@pytest.mark.parametrize("seed", SEEDS)
def test_every_owner_decides_as_the_auditor_does(seed, monkeypatch):
    """Half of the logs collect norms, and publish decisions in parts."""
    collects = seed % 2 == 1
    monkeypatch.setattr(parts, "MAX_PART_BYTES", 500 if collects else parts.MAX_PART_BYTES)
    monkeypatch.setattr(collecting, "BLOCK", 2)
    monkeypatch.setattr(collecting, "MAX_COLLECTED", 6)
    monkeypatch.setattr(auditor_charges, "_MOST_COLLECTED", 6)
    log = RandomLog(seed, collects=collects).grow(180 if seed < 4 else 400)
    log.audit()
    for output in chain.from_iterable(log.outputs):
        assert to_msgpack(to_json(output.value)) == output.value
    worker = MergingWorker(Random(seed))
    for offset, (record, published) in enumerate(zip(log.records, log.outputs, strict=True)):
        assert worker.ledger.apply(offset, record) == published
        worker.go_on()
    worker.finish()
    fresh = rebuilt(log.changes)
    # Which pages there are; the accrued charges in them depend on who took over when.
    names = {name for name in fresh.state.unmerged() if fresh.state.take_page(name) is not None}
    assert worker.pages.keys() == names
    worker.die()
    log.hand_over(worker.ledger)
