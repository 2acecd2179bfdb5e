"""The demo is the whole path: what it reports must be what Kafka brought back."""

import pytest

from streams.demo import run_demo
from tests.integration.service import ServiceFactory


@pytest.fixture(scope="module")
def report(start_service: ServiceFactory, tmp_path_factory):
    with start_service(workers=2, partitions=4) as service:
        out = tmp_path_factory.mktemp("plots")
        yield run_demo("mnist", service.config, None, out, echo=lambda _: None), service


def test_every_halt_of_the_training_came_back_through_kafka(report):
    (summary,) = report[0].summaries
    assert summary["halt_events_received"] == summary["halted"] > 0
    assert summary["odometer_checkpoints_received"] > 0


def test_individual_accounting_goes_on_where_the_worst_case_stops(report):
    (training,) = report[0].trainings
    assert training.settings.steps > training.k0
    assert (training.trace.admitted[: training.k0] == len(training.images.train)).all()


def test_the_training_was_charged_as_an_auditor_would(report):
    report[1].audit()


def test_plots_are_written(report):
    assert [path.suffix for path in report[0].plots] == [".png", ".png"]
    assert all(path.stat().st_size > 10_000 for path in report[0].plots)
