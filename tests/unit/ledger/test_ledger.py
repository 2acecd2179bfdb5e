"""One partition: what a record does, what it must not do, and that it can be done again.

In both versions of the wire, and with the auditor of the pipeline tests looking on.
"""

import msgspec
import numpy as np
import pytest

from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import admitted, exhausted


@pytest.fixture
def log() -> AuditedLog:
    log = AuditedLog()
    log.create(**log.any_ids)
    log.open()
    return log


def test_exactly_as_many_steps_are_admitted_as_fit():
    log = AuditedLog()
    log.create(budget=1.0)
    log.open()
    for step in range(32):  # each costs 1 / 32
        decision = log.charge(step, [1], [1.0])
        assert admitted(decision) == [True]
        assert exhausted(decision) == [step == 31]
    assert admitted(log.charge(32, [1], [1.0])) == [False]
    assert admitted(log.charge(33, [1], [0.0])) == [True]
    assert log.spent() == {1: 2**44}


def test_repeated_step_returns_the_stored_decision(log):
    first = log.charge(0, [1, 2], [1.0, 2.0])
    spent = log.spent()
    assert log.charge(0, [1, 2], [1.0, 2.0]) == first
    assert log.spent() == spent
    log.open(attempt=2)
    again = log.charge(0, [1, 2], [1.0, 2.0], attempt=2)
    assert msgspec.structs.replace(again, attempt=1) == first
    assert log.spent() == spent


def test_the_encoding_of_a_step_does_not_make_it_another_step(log):
    first = log.charge(0, [1, 2], [1.0, 2.0])
    packed = np.array([1, 2], dtype="<i8").tobytes()
    assert log.charge(0, packed, [1.0, 2.0]) == first
