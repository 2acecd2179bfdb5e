"""Each case of the table of bad input is rejected for its reason, and charges no user."""

import msgspec
import numpy as np
import pytest

from streams.records import MAX_QUOTED_BYTES
from streams.records.users import partitions_of
from tests.audit.bad_input import BAD_INPUT, PARTITIONS, BadInput, ChargedRun
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import admitted, answer_of

HERE = np.flatnonzero(partitions_of(np.arange(100), PARTITIONS) == 0)
LANE = ChargedRun("d", "r", HERE[:4].tolist())


@pytest.fixture
def log(case: BadInput):
    log = AuditedLog(partitions=PARTITIONS)
    log.create(LANE.dataset, **case.policy)
    log.open(LANE.dataset, LANE.run)
    for record in case.before(LANE):
        log.send(record)
    return log


@pytest.mark.parametrize("case", BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_refused_and_the_stream_goes_on(log: AuditedLog, case: BadInput):
    before = log.ledger.summary(), log.spent()
    value = case.record(LANE)
    rejected = answer_of(log.send(value))
    assert (rejected.reason, log.reason()) == (case.reason, case.reason)
    assert rejected.record == (value or b"")[:MAX_QUOTED_BYTES]
    assert (log.ledger.summary(), log.spent()) == before
    assert admitted(answer_of(log.send(msgspec.msgpack.encode(LANE.charge())))) == [True] * 4


def test_what_the_rows_about_rosters_spoil_is_accepted_as_it_is():
    log = AuditedLog(partitions=PARTITIONS)
    log.create(LANE.dataset)
    log.open(LANE.dataset, LANE.run)
    for record in (LANE.first(), LANE.enrolment(), LANE.enrolment(), LANE.roster_step()):
        log.send(msgspec.msgpack.encode(record))
        assert log.reason() is None
