"""The demo covers the whole path: what it reports is what Kafka returned."""

from pathlib import Path

import pytest

from streams.demo.entry import run_demo
from tests.integration.demos import small_demo
from tests.integration.service import ServiceFactory


@pytest.fixture(scope="module")
def demo(start_service: ServiceFactory, tmp_path_factory):
    with start_service(workers=2, partitions=4) as service:
        out = tmp_path_factory.mktemp("plots")
        with small_demo():
            yield run_demo("all", service.config, out=out, seeds=1, echo=lambda _: None), service


def test_every_halt_of_both_scenarios_is_read_from_kafka(demo):
    assert [summary["scenario"] for summary in demo[0]] == ["revenue", "training"]
    for summary in demo[0]:
        for charged in summary["service"]:
            assert charged["halt_events"] == charged["halted"] > 0
            assert charged["odometer_records"] > 0


def test_the_auditor_agrees_with_the_charges_of_the_demo(demo):
    demo[1].audit()


def test_a_plot_of_each_scenario_is_written(demo):
    plots = [Path(summary["plot"]) for summary in demo[0]]
    assert [path.name for path in plots] == ["revenue.svg", "training.svg"]
    points = [path.read_text(encoding="utf-8").count("<use ") for path in plots]
    assert points[0] > 3 * 30  # an answer per day and accounting
    assert points[1] > 0
