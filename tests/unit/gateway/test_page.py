"""The examples of docs/gateway.md, run as they are there; a stand-in takes the place of Spark."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.gateways import gateway_to
from tests.keys import private_key, public
from tests.readme import blocks, page
from tests.unit.sdk.partitions import Partitions

LOG = r"[0-9a-f]{32}"
HANDLE = rf"1-{LOG}"
URL = "http://127.0.0.1:8482/"
BATCHES = [{1: 0.5, 2: 3.0}, {1: 0.25}, {1: 0.25}]


class Stream:
    """A stream that sends each batch twice, as after a failure."""

    def foreachBatch(self, function: Callable[[Any, int], None]) -> Stream:  # noqa: N802
        self._function = function
        return self

    def start(self) -> None:
        for step, sums in enumerate(BATCHES):
            batch = Mock()
            summed = batch.groupBy.return_value.sum.return_value.orderBy.return_value
            summed.collect.return_value = sorted(sums.items())
            for _ in range(2):
                self._function(batch, step)
            assert {one.args for one in batch.groupBy.call_args_list} == {("user",)}


def test_batches_of_the_spark_example_are_charged_once() -> None:
    service = Partitions()
    service.create("visits", budget=1.0)
    released: dict[int, Any] = {}

    def release(step: int, sums: list[float], granted: list[float]) -> None:
        assert released.setdefault(step, (sums, granted)) == (sums, granted), "the same again"

    (block,) = blocks(page("gateway"))
    with gateway_to(service) as gateway:
        here = block.replace(URL, gateway.url)
        exec(here, {"stream": Mock(writeStream=Stream()), "release": release})
    assert released == {
        0: ([0.5, 3.0], [0.5, 1.0]),
        1: ([0.25], [0.25]),
        2: ([0.25], [0.25]),
    }
    assert service.spent("visits") == {1: pytest.approx(0.375 / 200), 2: pytest.approx(1 / 200)}


@pytest.mark.process
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_commands_of_the_page_have_the_output_of_the_page(tmp_path: Path) -> None:
    shown = "".join(re.findall(r"```console\n(.*?)```", page("gateway"), re.DOTALL))
    shown = re.sub(rf'(?<="){LOG}(?=/)', "0" * 32, shown)  # the id of a log in memory
    attempt = shown_attempt = re.findall(HANDLE, shown)[0]
    variables, compared = "", 0
    (tmp_path / "curator.key").write_text(private_key("carol"))
    with gateway_to(Partitions(4), curators=public("carol")) as gateway:
        for line in filter(None, shown.splitlines()):
            here = line.replace(shown_attempt, attempt).replace(URL, gateway.url)
            if here.startswith("$ curl"):
                script = variables + here[2:]
                done = subprocess.run(
                    ["bash", "-c", script], cwd=tmp_path, capture_output=True, check=True
                )
                found = done.stdout.decode()
                attempt = (re.findall(HANDLE, found) or [attempt])[0]
            elif here.startswith("$ "):
                variables += f"{here[2:]}; "
            else:
                expected = line.replace(shown_attempt, attempt).split("...")
                assert all(part.rstrip(", ") in found for part in expected), found
                compared += 1
    assert compared == 7
