"""The comparison of a stored state with the log names the first thing that differs."""

import pytest

from streams.store.layout import LAYOUT, Identity, fields_of_nothing
from streams.store.misfit import Suspensions
from streams.store.store_port import SuspensionReason as Reason

TOPIC = b"sixteen bytes id"
LOG = Suspensions("t.", 1, TOPIC, 3, 10, 20)
OWN = Identity.of(fields_of_nothing(TOPIC, 1, 3))

CASES = {
    # the state, where it continues: the reason
    "at the start": (OWN, 10, None),
    "at the end": (OWN, 20, None),
    "offsets are not compared": (OWN, None, None),
    "after the end": (OWN, 21, Reason.LOG_ENDS_EARLY),
    "before the start": (OWN, 9, Reason.LOG_BEGINS_LATE),
    "another layout": (OWN._replace(layout=str(LAYOUT + 1)), 15, Reason.OTHER_LAYOUT),
    "another topic": (OWN._replace(topic="00" * 16), 15, Reason.OTHER_LOG),
    "other partitions": (OWN._replace(partitions="2"), 15, Reason.OTHER_PARTITIONS),
    "nothing said": (Identity.of({}), None, Reason.OTHER_LAYOUT),
    "layout before topic": (Identity("9", "", "2"), 21, Reason.OTHER_LAYOUT),
    "topic before partitions": (Identity(str(LAYOUT), "", "2"), 21, Reason.OTHER_LOG),
    "partitions before offsets": (OWN._replace(partitions="none"), 21, Reason.OTHER_PARTITIONS),
}


@pytest.mark.parametrize(("state", "next_offset", "reason"), CASES.values(), ids=CASES)
def test_the_first_misfit_is_named(
    state: Identity, next_offset: int | None, reason: Reason | None
) -> None:
    found = LOG.misfit(state, next_offset)
    assert (found and found.reason) == reason


def test_a_trimmed_log_is_never_advised_to_be_applied_again() -> None:
    for state in (OWN._replace(layout="9"), OWN._replace(topic="00" * 16)):
        found = LOG.misfit(state)
        assert found
        assert "DEL" not in found.remedy
