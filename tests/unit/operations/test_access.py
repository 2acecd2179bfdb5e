"""The access list of a dataset is told of all partitions, and whether they agree about it."""

from streams.operations.status import datasets_of
from streams.records import encode
from streams.store.port import Glance, Inventory
from tests.keys import allowing
from tests.unit.ledger.signed_logs import ALLOW, SignedLog, listed

FEWER = allowing(mary="manage")


def seen(*logs: SignedLog):
    """The dataset d, as the owners of these partitions tell of it."""
    summaries = [Inventory(7, log.ledger.summary()) for log in logs]
    return datasets_of(Glance(0, {}, 0, b"", encode(each), {}) for each in summaries)["d"]


def changed(number: int = 1) -> SignedLog:
    log = listed()
    assert log.set(number, FEWER) is None
    return log


def test_the_list_in_force_is_told_and_not_the_one_of_the_policy():
    dataset = seen(changed(), changed(2))
    assert (dataset.allow, dataset.allow_agrees) == (FEWER, True)
    assert dataset.policy.allow == ALLOW


def test_a_change_that_reached_some_partitions_is_told():
    for logs in ((listed(), changed()), (changed(), listed())):
        assert not seen(*logs).allow_agrees


def test_an_open_dataset_has_no_list():
    log = SignedLog()
    log.create()
    dataset = seen(log, log)
    assert (dataset.allow, dataset.allow_agrees) == (None, True)


def test_a_dataset_inside_another_one_has_its_list():
    log = listed()
    with log.signing("mary"):
        log.create("inner", parent="d")
    summary = log.ledger.summary()
    assert summary.datasets["inner"].allow == ALLOW
