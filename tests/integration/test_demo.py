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
            yield run_demo(service.config, out=out, seeds=1, echo=lambda _: None), service


def test_every_halt_is_read_from_kafka(demo):
    charged = demo[0]["service"]
    assert charged["halt_events"] == charged["halted"] > 0
    assert charged["odometer_records"] > 0


def test_the_auditor_agrees_with_the_charges_of_the_demo(demo):
    demo[1].audit()


def test_a_plot_is_written(demo):
    path = Path(demo[0]["plot"])
    assert path.name == "revenue.svg"
    points = path.read_text(encoding="utf-8").count("<use ")
    assert points > 3 * 30  # an answer per day and accounting
