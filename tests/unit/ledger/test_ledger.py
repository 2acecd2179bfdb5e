"""One partition: what a record does, what it must not do, and that it can be done again.

In both versions of the wire, and with the auditor of the pipeline tests looking on.
"""

import msgspec
import numpy as np
import pytest

from tests.unit.ledger.audited import AuditedLog


@pytest.fixture
def log() -> AuditedLog:
    log = AuditedLog()
    log.create(**log.any_ids)
    log.open()
    return log


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
