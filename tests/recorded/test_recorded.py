"""Logs that were folded once are folded the same way for ever, bit for bit."""

import msgspec
import pytest

from tests.recorded.record import HERE, Recording, recording_of
from tests.streams.ledgers import Log

RECORDINGS = sorted(HERE.glob("*.msgpack"))


def test_there_are_recordings():
    assert len(RECORDINGS) >= 2


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recorded_log_is_folded_as_it_was(path):
    kept = msgspec.msgpack.decode(path.read_bytes(), type=Recording)
    log = Log(kept.partitions, kept.partition)
    for record in kept.records:
        log.send(record)
    again = recording_of(log)
    assert again.outputs == kept.outputs
    assert again.spent == kept.spent
