"""Records as bytes, most of them damaged: none ends a worker, and the auditor says why of each.

``make fuzz`` tries any number of other seeds.
"""

import tracemalloc

import pytest

from streams.records import CollectTerms
from tests.fuzz.hostile import HOSTILE, hostile
from tests.fuzz.watch import LOG_RECORDS, MOST_BYTES, MOST_BYTES_PER_BYTE, Fuzz, Watch
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.roster_logs import RosterLog

SEEDS = [
    *(0, 1),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6)),
    *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(6, 12)),
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_no_record_suspends_a_partition(seed):
    watch = Watch()
    Fuzz(seed, watch).run(LOG_RECORDS)
    assert watch.records >= LOG_RECORDS
    assert watch.judged > 0.7 * LOG_RECORDS
    assert watch.outcomes["applied"] > LOG_RECORDS // 20
    assert len(watch.outcomes) > 10


@pytest.fixture
def ledger():
    log = RosterLog()
    log.create("a", user_ids="mixed")
    log.open(dataset="a")
    log.enrol([1, 2, 3], dataset="a", levels=3, clip_norm=2.0)
    log.open("a", "events", collect=CollectTerms(clip_norm=2.0))
    AuditedLog.made.clear()  # the auditor does not see the records
    return log.ledger


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1_000, 200_000])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_record_takes_memory_in_proportion_to_its_size(ledger, name, size):
    value = hostile(name, size, step=0)
    assert len(value) < size + 2_000
    tracemalloc.start()
    try:
        outputs = ledger.apply(99, value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(output.value for output in outputs)
    assert peak <= MOST_BYTES + MOST_BYTES_PER_BYTE * len(value)
