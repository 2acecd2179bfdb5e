"""Runs that collect norms, as senders and a trainer see them: what is refused, lost or forged."""

from __future__ import annotations

import math
from typing import Any

import pytest

from streams import CollectTerms
from streams.records import Reason
from streams.sdk.errors import InvalidRequest, PartitionsDisagree, RequestRejected
from tests.unit.sdk.partitions import Partitions

TERMS = CollectTerms(clip_norm=1.0)


@pytest.fixture
def service() -> Partitions:
    service = Partitions()
    service.create(user_ids="integer")
    return service


INVALID: dict[str, Any] = {
    "a clip norm of 0": CollectTerms(clip_norm=0.0),
    "no finite clip norm": CollectTerms(clip_norm=math.inf),
    "a clip norm in text": CollectTerms(clip_norm="1"),
    "an unknown mechanism": CollectTerms(clip_norm=1.0, mechanism="exponential"),
    "sampling": CollectTerms(clip_norm=1.0, mechanism="poisson-gaussian"),
    "no terms": 1.0,
}


@pytest.mark.parametrize("terms", INVALID.values(), ids=INVALID)
def test_invalid_terms_publish_nothing(service: Partitions, terms: Any) -> None:
    sent = [len(log) for log in service.logs]
    with pytest.raises(InvalidRequest):
        service.open(collect=terms)
    assert [len(log) for log in service.logs] == sent


@pytest.mark.parametrize("measure", ["zcdp", "gdp"])
def test_terms_that_do_not_fit_the_dataset_open_no_run(service: Partitions, measure: str) -> None:
    """Ids of the kind that comes first, or a mechanism that the measure does not charge."""
    service.create("other", measure=measure, user_ids="one-kind" if measure == "zcdp" else "mixed")
    terms = CollectTerms(clip_norm=1.0, mechanism="laplace")
    with pytest.raises(
        InvalidRequest, match="one-kind|kind of ids" if measure == "zcdp" else measure
    ):
        service.open(dataset="other", collect=terms)
    assert not service.close_run("r", "other")


def test_the_terms_are_those_of_the_first_opening(service: Partitions) -> None:
    assert service.open(collect=TERMS).collect == TERMS
    assert service.open().collect == service.open(collect=TERMS).collect == TERMS
    with pytest.raises(RequestRejected) as rejected:
        service.open(collect=CollectTerms(clip_norm=2.0))
    assert rejected.value.reason is Reason.COLLECT_CHANGED
    service.close_run()
    assert service.open("named").collect is None


def test_an_interrupted_opening_is_completed_under_the_same_terms(service: Partitions) -> None:
    service.deaf = {1, 2}
    with pytest.raises(TimeoutError):
        service.open(collect=TERMS)
    service.deaf = set()
    assert service.open(collect=TERMS).collect == TERMS
    service.close_run()
    service.deaf = {1, 2}
    with pytest.raises(TimeoutError):
        service.open("s", collect=TERMS)
    service.deaf = set()
    with pytest.raises(PartitionsDisagree):
        service.open("s")
