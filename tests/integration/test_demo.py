"""The demo is the whole path: what it reports must be what Kafka brought back."""

import numpy as np
import pytest

from streams.demo.entry import run_demo
from tests.integration.demos import small_demos
from tests.integration.service import ServiceFactory


@pytest.fixture(scope="module")
def report(start_service: ServiceFactory, tmp_path_factory):
    with start_service(workers=2, partitions=4) as service:
        out = tmp_path_factory.mktemp("plots")
        with small_demos():
            done = run_demo("mnist", service.config, None, out, echo=lambda _: None)
        yield done, service


@pytest.fixture(scope="module")
def sampled(report, tmp_path_factory):
    """The sampled training on the same service, with fewer steps."""
    out = tmp_path_factory.mktemp("sampled")
    with small_demos():
        return run_demo("dpsgd", report[1].config, None, out, echo=lambda _: None)


def test_sampled_steps_are_charged_to_everybody_and_the_pace_keeps_them(sampled):
    for (result,) in sampled.sampled:
        assert (result.trace.admitted == len(result.images.train)).all()
        assert 0.0 < np.median(result.trace.spent) < result.trace.spent.max() <= 1.0


def test_without_a_pace_sampled_users_run_out(sampled):
    known, tuned = (result for (result,) in sampled.sampled)
    assert known.unpaced.admitted[-1] < known.unpaced.admitted[0]
    assert tuned.unpaced is None


def test_a_sampled_demo_has_a_plot_and_a_summary_for_each_clip_norm(sampled):
    assert [path.name for path in sampled.plots] == ["digits-dpsgd.png"]
    assert len(sampled.summaries) == 2


def test_every_halt_of_the_training_came_back_through_kafka(report):
    (summary,) = report[0].summaries
    assert summary["halt_events_received"] == summary["halted"] > 0
    assert summary["odometer_checkpoints_received"] > 0


def test_individual_accounting_goes_on_where_the_worst_case_stops(report):
    (training,) = report[0].trainings
    assert training.settings.steps > training.k0
    assert (training.trace.admitted[: training.k0] == len(training.images.train)).all()


def test_the_trainings_were_charged_as_an_auditor_would(report, sampled):
    report[1].audit()


def test_plots_are_written(report):
    assert [path.suffix for path in report[0].plots] == [".png", ".png"]
    assert all(path.stat().st_size > 10_000 for path in report[0].plots)
