"""Several queries under one charge, and intervals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streams.queries import QueryAnswerer, Release
from streams.sdk.errors import InvalidRequest
from tests.readme import blocks, page
from tests.unit.queries.test_continual_monitoring import quiet, run_of
from tests.unit.sdk.partitions import in_memory_run


def test_queries_under_one_charge_cost_their_joint_norm_once() -> None:
    service, run = in_memory_run(1.0)
    answers = quiet(run, norm_budget=100.0).answer_all(
        {
            "buyers": (["ann", "bob"], [1.0, 1.0]),
            "spend": (["bob", "cyd"], [[3.0, 4.0], [0.0, 2.0]]),
            "none": ([], []),
        },
        dimensions={"spend": 2, "none": 3},
    )
    assert {name: answer.value.tolist() for name, answer in answers.items()} == {
        "buyers": 2.0,
        "spend": [3.0, 6.0],
        "none": [0.0, 0.0, 0.0],
    }
    assert {answer.step for answer in answers.values()} == {0}
    (norms,) = service.charged()
    assert norms["ann"] == pytest.approx(1.0, rel=1e-14)
    assert norms["ann"] >= 1.0
    assert norms["bob"] == pytest.approx(math.sqrt(26.0), rel=1e-14)
    assert norms["cyd"] == pytest.approx(2.0, rel=1e-14)


def test_a_scale_divides_the_charge_and_multiplies_the_noise() -> None:
    service, run = in_memory_run(1.0)
    answerer = quiet(run, norm_budget=100.0)
    answers = answerer.answer_all(
        {"buyers": (["ann"], [1.0]), "spend": (["ann"], [64.0])}, scales={"spend": 64.0}
    )
    assert answers["spend"].value == 64.0
    assert answers["spend"].noise_stddev == 64.0 * answers["buyers"].noise_stddev
    assert service.charged()[0]["ann"] == pytest.approx(math.sqrt(2.0), rel=1e-14)


def test_joint_contributions_are_clipped_together() -> None:
    service, run = in_memory_run(1.0)
    answers = quiet(run, clip_norm=1.0).answer_all({"a": (["ann"], [30.0]), "b": (["ann"], [40.0])})
    assert service.charged() == [{"ann": 1.0}]
    np.testing.assert_allclose([answers["a"].value, answers["b"].value], [0.6, 0.8], rtol=1e-11)


@pytest.mark.parametrize(
    ("queries", "scales"),
    [
        ({}, {}),
        ({"a": (["x"], [1.0])}, {"b": 1.0}),
        ({"a": (["x"], [1.0])}, {"a": 0.0}),
        ({"a": (["x"], [1.0])}, {"a": math.nan}),
        ({"a": (["x", "x"], [1.0, 1.0])}, {}),
        ({"a": (["x"], [1.0, 2.0])}, {}),
    ],
)
def test_invalid_joint_queries_are_rejected_before_the_charge(
    queries: dict[str, Any], scales: dict[str, float]
) -> None:
    service, run = in_memory_run(1.0)
    with pytest.raises(InvalidRequest):
        quiet(run).answer_all(queries, scales=scales)
    assert service.charged() == []


@pytest.mark.parametrize("shape", [(), (1,), (12,)])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_intervals_hold_for_all_coordinates_together(
    confidence: float, shape: tuple[int, ...]
) -> None:
    release = Release(0, np.full(shape, 7.0), 3.0)
    lower, upper = release.interval(confidence)
    assert lower.shape == upper.shape == shape
    np.testing.assert_allclose(upper - 7.0, 7.0 - lower)
    inside = 2.0 * stats.norm.cdf((upper - 7.0) / 3.0) - 1.0
    assert float(np.prod(inside)) == pytest.approx(confidence, rel=1e-9)
    for bad in (0.0, 1.0, 95.0, math.nan):
        with pytest.raises(InvalidRequest):
            release.interval(bad)


def test_the_lines_in_the_docs_answer() -> None:
    _, example, *_ = blocks(page("query/python"))
    users, amounts = ["ann", "bob"], [12.0, 250.0]
    frame = pd.DataFrame({"customer": users, "amount": amounts})
    given = {"users": users, "amounts": amounts, "ones": [1.0, 1.0], "purchases": frame}
    names = {**given, "run": run_of(1e4), "QueryAnswerer": QueryAnswerer}
    exec(example, names)
    assert names["lower"] < names["spent"].value < names["upper"]
    assert names["both"]["spend"].noise_stddev == 100.0 * names["both"]["buyers"].noise_stddev
