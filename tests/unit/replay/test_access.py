"""A log of signed requests is verified, trimmed or not, and so are its access lists."""

from typing import Any

import pytest
from msgspec.structs import replace

from streams import Turnstile
from streams.kafka.topics import NORMS
from streams.replay.findings import Check
from streams.replay.verify import verify
from tests.keys import allowing, private_key, public
from tests.unit.replay.service import Archived

ALLOW = {public("alice"): ["charge"], public("mary"): ["manage"]}


def charge(archived: Archived, steps: int) -> None:
    alice = Turnstile(connection=archived, request_key=private_key("alice"))
    run = alice.run("d", "r")
    for _ in range(steps):
        run.charge([1, 2, 3, 4], [0.25] * 4, noise_stddev=4.0)


@pytest.fixture
def archived() -> Archived:
    """A service in which alice has charged before and after the list was changed."""
    archived = Archived()
    Turnstile(connection=archived).create_dataset("d", measure="zcdp", budget=1.0, allow=ALLOW)
    charge(archived, 2)
    mary = Turnstile(connection=archived, request_key=private_key("mary"))
    mary.set_access("d", {**ALLOW, public("anna"): ["charge"]})
    charge(archived, 1)
    return archived


def checks(archived: Archived) -> list[tuple[Check, Any]]:
    return [(one.check, one.about) for one in verify(archived).findings]


def test_signed_requests_fit(archived):
    assert checks(archived) == []


def test_snapshot_contains_the_access_lists(archived):
    for partition in range(archived.partitions):
        archived.draw(partition)
        archived.trim(NORMS, partition, archived.extent(NORMS, partition).end)
    charge(archived, 1)
    assert checks(archived) == []


@pytest.mark.parametrize(
    "tampered",
    [
        lambda own: replace(own, allow=allowing(thief="charge manage")),
        lambda own: replace(own, number=1),
        lambda own: replace(own, log=b"another log, 16 "),
        None,
    ],
    ids=["another key", "an older number", "another log", "nothing"],
)
def test_changed_access_list_in_redis_is_found(archived, tampered):
    access = archived.ledgers[0].state.access
    if tampered is None:
        del access["d",]
    else:
        access["d",] = tampered(access["d",])
    archived.apply(0, b"with which it is written")
    assert checks(archived) == [(Check.STATE, {"dataset": "d"})]
