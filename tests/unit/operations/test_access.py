"""The access list of a dataset over all partitions."""

from streams.operations.status import datasets_of
from streams.store.store_port import Glance, Inventory, pack_report
from tests.keys import allowing
from tests.unit.ledger.signed_logs import ALLOW, SignedLog, listed

FEWER = allowing(mary="manage")


def seen(*logs: SignedLog):
    """The dataset d, as the owners of these partitions tell of it."""
    summaries = [Inventory(7, log.ledger.summary()) for log in logs]
    return datasets_of(Glance(0, {}, 0, b"", pack_report(each), {}) for each in summaries)["d"]


def changed(number: int = 1) -> SignedLog:
    log = listed()
    assert log.set(number, FEWER) is None
    return log


def test_status_has_the_list_in_force():
    dataset = seen(changed(), changed(2))
    assert (dataset.allow, dataset.allow_agrees) == (FEWER, True)
    assert dataset.policy.allow == ALLOW

    open_to_all = SignedLog()
    open_to_all.create()
    dataset = seen(open_to_all, open_to_all)
    assert (dataset.allow, dataset.allow_agrees) == (None, True)


def test_partial_access_change_is_shown():
    for logs in ((listed(), changed()), (changed(), listed())):
        assert not seen(*logs).allow_agrees


def test_nested_dataset_has_the_access_list_of_its_parent():
    log = listed()
    with log.signing("mary"):
        log.create("inner", parents=["d"])
    summary = log.ledger.summary()
    assert summary.datasets["inner"].allow == ALLOW
