"""The ledger of a data set, with the real packages whose releases it charges.

`make test-adapters` installs OpenDP, Opacus and Flower; without them, their tests are skipped.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import dp_accounting
import numpy as np
import pytest

from accounting import (
    MEASURES,
    Gaussian,
    Laplace,
    PoissonGaussian,
    PureDP,
    renyi_budgets,
    renyi_cost,
    renyi_to_epsilon,
)
from streams import Turnstile
from tests.readme import blocks, example, page
from tests.unit.sdk import files

if find_spec("opacus") is not None:  # PyTorch starts a process, which no test may do
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

ledgers = example("dataset_ledger")
Step, Ledger, Refused = ledgers.Step, ledgers.Ledger, ledgers.Refused
TERMS = {"epsilon": 4.0, "delta": 1e-6, "order": 8.0}
BUDGET = float(renyi_budgets(4.0, 1e-6, [8.0])[0])
GAUSSIAN = dp_accounting.GaussianDpEvent(5.0)
SAMPLED = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))


@pytest.fixture(autouse=True)
def fast_files() -> Iterator[None]:
    """Let SQLite not wait for the disk."""
    with patch.object(sqlite3, "connect", files.connect):
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "releases.db"


def cost_of(steps: list[Any]) -> float:
    """Return what the ledger charges, in nats."""
    charge = MEASURES["renyi"].charge_units
    units = [step.count * int(charge(step.mechanism, [step.norm], [8.0])[0, 0]) for step in steps]
    return sum(units) / 2**44


def spent(path: Path) -> set[Any]:
    with Turnstile.open(path) as t:
        return {tuple(record.bound) for record in t.odometer(follow=False)}


@pytest.mark.slow
def test_the_example_refuses_what_the_budget_does_not_pay_for(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledgers.main(str(path))
    shown = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in shown] == [
        "may leave",
        "may leave",
        "may leave",
        "refused",
        "may leave",
    ]
    ledgers.main(str(path))  # the budget outlives the program
    assert capsys.readouterr().out.count("may leave") < 4


@pytest.mark.slow
def test_the_program_of_the_page_charges_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "dataset_ledger", ledgers)
    *_, program = blocks(page("budgets/whole-data-set"))
    for _ in range(3):
        exec(program, {})
    assert capsys.readouterr().out.splitlines() == ["may leave", "may leave", "is refused"]


RELEASES = [
    [Step(PureDP(), 0.3)],
    [Step(Gaussian(1.0), 0.1)],
    [Step(Laplace(4.0), 1.0, 2)],
    [Step(PoissonGaussian(1.0, 0.01), 1.0, 8)],
    [Step(Gaussian(2.0), 0.2, 5), Step(PureDP(), 0.1, 2)],
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_releases_are_admitted_while_their_divergences_fit(seed: int, path: Path) -> None:
    chance, total, refused = Random(seed), 0.0, 0
    for _ in range(4):  # programs, one after the other
        with Ledger(path, "survey", **TERMS) as ledger:
            for _ in range(10):
                steps = chance.choice(RELEASES)
                cost = cost_of(steps)
                assert abs(total + cost - BUDGET) > 1e-6  # no release is at the very end
                if total + cost < BUDGET:
                    ledger.charge(steps)
                    total += cost
                else:
                    with pytest.raises(Refused):
                        ledger.charge(steps)
                    refused += 1
    assert refused > 0
    assert max(spent(path))[0] >= total
    assert float(renyi_to_epsilon([8.0], [total], 1e-6)) <= 4.0


def test_a_refused_release_of_many_steps_costs_nothing(path: Path) -> None:
    with Ledger(path, "survey", **TERMS) as ledger:
        with pytest.raises(Refused):
            ledger.charge([Step(Laplace(1.0), 1.0, 30)])
        ledger.charge([Step(PureDP(), 0.5)])
    assert cost_of([Step(Laplace(1.0), 1.0)]) == 1.0
    ((bound,),) = spent(path)
    assert 0.5 <= bound < 1.0


@pytest.mark.parametrize(
    ("event", "steps"),
    [
        (GAUSSIAN, [Step(Gaussian(5.0), 1.0)]),
        (dp_accounting.LaplaceDpEvent(2.0), [Step(Laplace(2.0), 1.0)]),
        (SAMPLED, [Step(PoissonGaussian(1.0, 0.01), 1.0)]),
        (dp_accounting.SelfComposedDpEvent(SAMPLED, 7), [Step(PoissonGaussian(1.0, 0.01), 1.0, 7)]),
        (
            dp_accounting.SelfComposedDpEvent(
                dp_accounting.ComposedDpEvent(
                    [GAUSSIAN, dp_accounting.SelfComposedDpEvent(SAMPLED, 3)]
                ),
                2,
            ),
            [Step(Gaussian(5.0), 1.0, 2), Step(PoissonGaussian(1.0, 0.01), 1.0, 6)],
        ),
        (dp_accounting.NoOpDpEvent(), []),
    ],
)
def test_events_of_dp_accounting_are_read(event: Any, steps: list[Any]) -> None:
    assert list(ledgers.steps_of_event(event)) == steps
    accountant = dp_accounting.rdp.RdpAccountant([8.0])
    accountant.compose(event)
    exact = accountant._rdp[0]
    assert cost_of(steps) >= exact * (1 - 1e-9)
    if "Laplace" not in str(event):  # which costs its epsilon, or that of Gaussian noise
        assert cost_of(steps) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.NonPrivateDpEvent(),
        dp_accounting.UnsupportedDpEvent(),
        dp_accounting.SampledWithoutReplacementDpEvent(10, 3, GAUSSIAN),
        dp_accounting.PoissonSampledDpEvent(0.5, dp_accounting.LaplaceDpEvent(1.0)),
        dp_accounting.GaussianDpEvent(0.0),
        None,
    ],
)
def test_a_composed_event_with_an_unpriced_part_charges_nothing(event: Any, path: Path) -> None:
    with Ledger(path, "survey", **TERMS) as ledger:
        composed = dp_accounting.ComposedDpEvent([GAUSSIAN, event])
        with pytest.raises(ledgers.CannotBeCharged):
            ledger.charge(ledgers.steps_of_event(composed))
    assert spent(path) == set()


# --- OpenDP ---


@pytest.fixture
def dp() -> Any:
    """Return OpenDP."""
    pytest.importorskip("opendp")
    import opendp.prelude

    opendp.prelude.enable_features("contrib")
    return opendp.prelude


def sum_of(dp: Any, metric: Any) -> Any:
    """Return the sum of numbers in 0 to 10."""
    return (dp.vector_domain(dp.atom_domain(bounds=(0.0, 10.0))), metric) >> dp.t.then_sum()


def test_measurements_of_opendp_are_read(dp: Any) -> None:
    total = sum_of(dp, dp.symmetric_distance())
    (laplace,) = ledgers.steps_of_measurement(total >> dp.m.then_laplace(20.0), 1)
    assert laplace.mechanism == PureDP()
    assert laplace.norm == pytest.approx(0.5)
    (gaussian,) = ledgers.steps_of_measurement(total >> dp.m.then_gaussian(20.0), 1)
    exact = renyi_cost(Gaussian(20.0), [10.0], [8.0])[0, 0]
    assert exact <= cost_of([gaussian]) <= exact * 1.0001
    (twice,) = ledgers.steps_of_measurement(total >> dp.m.then_laplace(20.0), 2)
    assert twice.norm == pytest.approx(1.0)


def test_measurements_with_a_delta_or_replaced_records_are_refused(dp: Any) -> None:
    gaussian = sum_of(dp, dp.symmetric_distance()) >> dp.m.then_gaussian(20.0)
    for refused in (
        dp.c.make_approximate(gaussian),
        dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(gaussian), 1e-6),
    ):
        with pytest.raises(ledgers.CannotBeCharged, match="MaxDivergence"):
            ledgers.steps_of_measurement(refused, 1)
    sized = dp.vector_domain(dp.atom_domain(bounds=(0.0, 10.0), nan=False), size=5)
    replaced = dp.t.make_metric_unbounded(sized, dp.change_one_distance()) >> dp.t.then_sum()
    of_size = (sized, dp.symmetric_distance()) >> dp.t.then_sum() >> dp.m.then_laplace(20.0)
    assert of_size.map(1) < 1e-9  # as if a record changed nothing
    for refused, d_in in (
        (replaced >> dp.m.then_laplace(20.0), 1),
        (of_size, 1),
        (of_size, 2),
        (gaussian, 0),
    ):
        with pytest.raises(ledgers.CannotBeCharged, match="d_in"):
            ledgers.steps_of_measurement(refused, d_in)


# --- Opacus ---


@pytest.fixture
def training() -> Any:
    """Return a model, its private optimizer and loader, and the accountant of Opacus."""
    pytest.importorskip("opacus")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(100, 3), torch.randn(100, 1))
    model = torch.nn.Linear(3, 1)
    engine = PrivacyEngine(accountant="prv")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=5),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    return model, optimizer, loader, engine.accountant


def train(training: Any, steps: int) -> Iterator[Any]:
    """Train, and yield the weights after each step."""
    model, optimizer, loader, _ = training
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            yield model._module.weight.detach().clone()
            steps -= 1
            if not steps:
                return


def test_a_step_of_opacus_is_charged_before_it_is_made(training: Any, path: Path) -> None:
    weights = []
    with Ledger(path, "survey", epsilon=4.0, delta=1e-6, order=5.0) as ledger:
        ledgers.charge_each_step(training[3], ledger)
        with pytest.raises(Refused):
            weights.extend(train(training, 10_000))
    (cost,) = renyi_cost(PoissonGaussian(1.0, 0.05), [1.0], [5.0])[0]
    assert len(weights) == int(renyi_budgets(4.0, 1e-6, [5.0])[0] / cost) > 50
    assert np.array_equal(training[0]._module.weight.detach(), weights[-1])
    assert training[3].history == [(1.0, 0.05, len(weights))]


# --- Flower ---


@pytest.fixture
def flower() -> Any:
    return pytest.importorskip("flwr.supercore.privacy_accounting")


def accountant_of(flower: Any, sampling: str, relation: str = "add-or-remove-one") -> Any:
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

    return RdpAccountant(
        flower.PrivacyConfig(
            target_delta=1e-6,
            population_size=30,
            neighboring_relation=flower.NeighboringRelation(relation),
            sampling_method=flower.SamplingMethod(sampling),
        ),
        orders=(8.0,),
    )


@pytest.mark.parametrize(
    ("sampling", "relation", "factor"),
    [
        ("poisson", "add-or-remove-one", 1),
        ("no-amplification", "add-or-remove-one", 4),  # twice the norm
        ("without-replacement", "replace-one", None),  # which Flower amplifies
    ],
)
def test_events_of_flower_are_read(
    sampling: str, relation: str, factor: int | None, flower: Any
) -> None:
    event = flower.GaussianPrivacyEvent(5.0, sample_size=10, population_size=30)
    accountant = accountant_of(flower, sampling, relation)
    accountant.compose(event, 3)
    accountant.compose(event)
    steps = ledgers.steps_of_flower(accountant)
    assert [step.count for step in steps] == [3, 1]
    if factor is None:
        assert cost_of(steps) == pytest.approx(4 * 8 * 2.0**2 / (2 * 5.0**2))
    else:
        assert cost_of(steps) == pytest.approx(factor * accountant._backend._rdp[0], rel=1e-6)
        assert cost_of(steps) >= factor * accountant._backend._rdp[0] * (1 - 1e-12)


class Reply:
    """The reply of a client: an update of three numbers."""

    error = None

    def __init__(self) -> None:
        from flwr.app import ArrayRecord, MetricRecord, RecordDict

        arrays, metrics = ArrayRecord([np.ones(3)]), MetricRecord({"num-examples": 1})
        self.content = RecordDict({"arrays": arrays, "metrics": metrics})

    def has_error(self) -> bool:
        return False

    def has_content(self) -> bool:
        return True


def test_a_round_of_flower_is_charged_before_its_aggregate_is_returned(
    flower: Any, path: Path
) -> None:
    from flwr.app import ArrayRecord
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    accountant = accountant_of(flower, "no-amplification")
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), 5.0, clipping_norm=1.0, num_sampled_clients=2, accountant=accountant
    )
    strategy.current_arrays = ArrayRecord([np.zeros(3)])

    def aggregates() -> Iterator[Any]:
        for number in range(100):
            strategy._prepare_accounting(number, [1, 2])  # as its configure_train does
            yield strategy.aggregate_train(number, [Reply(), Reply()])[0]

    returned = []
    with Ledger(path, "survey", **TERMS) as ledger:
        ledgers.charge_each_round(accountant, ledger)
        with pytest.raises(Refused):
            returned.extend(aggregates())
    assert len(returned) == int(BUDGET / (8 * 2.0**2 / (2 * 5.0**2))) > 0
    assert accountant.num_releases == len(returned)
