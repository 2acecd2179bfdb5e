"""One budget for a whole data set, on which releases made with several libraries draw.

    python dataset_ledger.py          # with this package and dp_accounting

Without a norm for each user, one account stands for whichever record is in the data set, and every
release costs its worst case. A release is a list of steps, which four functions read from what
other libraries report:

    steps_of_event(event)                     dp_accounting: an event, also composed
    steps_of_measurement(measurement, d_in)   OpenDP: a measurement
    steps_of_opacus(accountant)               Opacus: the history of an accountant
    steps_of_flower(accountant)               Flower: the events of an accountant

`Ledger.charge(steps)` charges a release before it leaves, or raises `Refused` and charges nothing.
A training can also charge each of its steps before the step is made: `charge_each_step` for Opacus,
`charge_each_round` for Flower.

Neighbouring data sets differ by adding or removing one record, and all releases must mean the same
kind of record. Everything else is refused with `CannotBeCharged`: another relation between
neighbours, or a delta of its own.
"""

from __future__ import annotations

import math
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from accounting import (
    MEASURES,
    Gaussian,
    InvalidInput,
    Mechanism,
    PoissonGaussian,
    PureDP,
    candidate_orders,
    mechanism_from,
)
from streams import Turnstile


class Step(NamedTuple):
    """Equal steps of a release.

    Attributes:
        mechanism: of each step.
        norm: the largest contribution of a record, in the units of the mechanism.
        count: the number of steps.
    """

    mechanism: Mechanism
    norm: float
    count: int = 1


class Refused(Exception):
    """The budget does not pay for the release. Nothing was charged, and nothing may leave."""


class CannotBeCharged(ValueError):
    """The cost of a release is not known, or does not fit the ledger. Nothing was charged."""


class Ledger:
    """The budget of a data set, in a file. The program that opened it last charges it.

    Args:
        path: the budget file; it is created if it does not exist.
        dataset: the name of the data set.
        epsilon, delta: of all releases together.
        order: the Rényi order at which divergences add up, such as `order_for` returns. Like
            epsilon and delta it is public, and never changes.
    """

    def __init__(
        self, path: Path | str, dataset: str, *, epsilon: float, delta: float, order: float
    ) -> None:
        self._path, self._dataset = Path(path), dataset
        self._turnstile = Turnstile.open(path, partitions=None if self._path.exists() else 1)
        # Rényi divergences add up for every kind of step below, also for sampled ones.
        self._turnstile.create_dataset(
            dataset,
            measure="renyi",
            epsilon=epsilon,
            delta=delta,
            orders=[order],
            user_ids="string",
        )
        self._account = _Account(self._turnstile, dataset)

    def charge(self, steps: Iterable[Step]) -> None:
        """Charge a release. Let it leave only after this method has returned.

        A release that fails afterwards stays charged.

        Raises:
            Refused: the budget does not pay for all steps. Nothing was charged.
            CannotBeCharged: as the function that read the steps says.
        """
        single = [one for step in steps for one in _singly(step)]
        # A step that is refused costs nothing, but those before it would stay charged. So several
        # steps are tried in a copy of the file first.
        if len(single) > 1:
            with TemporaryDirectory() as folder:
                copy = Path(folder) / "copy.db"
                with (
                    closing(sqlite3.connect(self._path)) as file,
                    closing(sqlite3.connect(copy)) as draft,
                ):
                    file.backup(draft)
                with Turnstile.open(copy) as turnstile:
                    _charge_all(_Account(turnstile, self._dataset), single)
        _charge_all(self._account, single)

    def close(self) -> None:
        """Close the file."""
        self._turnstile.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def order_for(planned: Iterable[Step], *, epsilon: float, delta: float) -> float:
    """Return the Rényi order at which a budget pays for most of what is planned.

    Gaussian noise needs a high order, and trainings that sample few records need a low one. What is
    planned must not follow from the data.
    """
    orders, budgets = candidate_orders(epsilon, delta)
    charge = MEASURES["renyi"].charge_units
    costs = [
        step.count * charge(step.mechanism, [step.norm], orders)[0].astype(float)
        for step in planned
    ]
    return float(orders[np.argmax(budgets / np.sum(costs, axis=0))])


class _Account:
    """The account that stands for any record of a data set."""

    def __init__(self, turnstile: Turnstile, dataset: str) -> None:
        self._run = turnstile.run(dataset, "releases")
        # Sampled steps are charged to a roster, whose members pay whether they are drawn or not.
        self._roster = self._run.enrol([_ANY], clip_norm=1.0, levels=1)

    def charge(self, step: Step) -> bool:
        """Charge one step; return whether the budget paid for it."""
        if isinstance(step.mechanism, PoissonGaussian):
            return bool(
                self._roster.charge(mechanism=step.mechanism, norms=[step.norm]).admitted[0]
            )
        decision = self._run.charge([_ANY], [step.norm], mechanism=step.mechanism)
        return bool(decision.admitted[0])


_ANY = "any record"


def _charge_all(account: _Account, steps: Iterable[Step]) -> None:
    for step in steps:
        if not account.charge(step):
            raise Refused("the budget of the data set does not pay for this release")


def _singly(step: Step) -> Iterator[Step]:
    """Yield steps that cost as much as equal steps do together: Gaussian ones are a single one."""
    mechanism, norm, count = step
    if isinstance(mechanism, PoissonGaussian) and norm > 1.0:  # the clip norm of the roster
        noise = mechanism.noise_stddev / _above(norm)
        mechanism, norm = PoissonGaussian(noise, mechanism.sampling_rate), 1.0
    if isinstance(mechanism, Gaussian) and count > 1:  # the squares of the norms add up
        norm, count = _above(math.sqrt(count) * norm), 1
    for _ in range(count):
        yield Step(mechanism, norm)


def _above(rounded: float) -> float:
    """Return a number that is not below what was rounded twice."""
    return rounded * (1.0 + 2.0**-50)


# --- dp_accounting ---


def steps_of_event(event: Any, count: int = 1) -> Iterator[Step]:
    """Yield the steps of a DpEvent: Gaussian, Laplace, Poisson-sampled Gaussian, or composed.

    Raises:
        CannotBeCharged: it contains another event.
    """
    match type(event).__name__:
        case "NoOpDpEvent":
            return
        case "SelfComposedDpEvent":
            yield from steps_of_event(event.event, count * event.count)
        case "ComposedDpEvent":
            for one in event.events:
                yield from steps_of_event(one, count)
        case _:
            try:
                yield Step(mechanism_from(event), 1.0, count)
            except InvalidInput as error:
                raise CannotBeCharged(str(error)) from error


# --- OpenDP ---

_OF_REPLACEMENTS = ("ChangeOneDistance", "HammingDistance")


def steps_of_measurement(measurement: Any, d_in: float) -> list[Step]:
    """Return the step that invokes an OpenDP measurement once.

    Args:
        measurement: in pure DP or in zCDP.
        d_in: how many of its rows a record can add or remove; 1 if each record is a row.

    Raises:
        CannotBeCharged: its privacy loss has a delta or a curve, or its neighbours replace a record
            instead of adding or removing one, as all neighbours of a public size do.
    """
    metric, measure = str(measurement.input_metric), str(measurement.output_measure)
    size = getattr(measurement.input_domain, "size", None)
    # With a public size no two data sets are a record apart, so `map(1)` would be 0.
    if metric.partition("(")[0] in _OF_REPLACEMENTS or size is not None or not d_in > 0:
        raise CannotBeCharged(
            f"the input metric is {metric}, the public size {size} and d_in {d_in}: use "
            "symmetric_distance or insert_delete_distance, in which a record is added or removed, "
            "without a size, and d_in above 0"
        )
    loss = measurement.map(d_in)
    if measure == "MaxDivergence":
        return [Step(PureDP(), loss)]
    if measure == "ZeroConcentratedDivergence":
        # Rényi divergence at most rho a at every order a, as a Gaussian of noise 1 has for the norm
        # sqrt(2 rho).
        return [Step(Gaussian(1.0), _above(math.sqrt(2.0 * loss)))]
    raise CannotBeCharged(
        f"the output measure is {measure}: use one in MaxDivergence or ZeroConcentratedDivergence"
    )


# --- Opacus ---


def steps_of_opacus(accountant: Any) -> list[Step]:
    """Return the steps in the history of an Opacus accountant.

    The history does not show how batches were drawn: the engine needs its default
    `poisson_sampling=True`. Charge a history once, before anything of the training leaves.
    """
    return [Step(_sampled(noise, rate), 1.0, steps) for noise, rate, steps in accountant.history]


def charge_each_step(accountant: Any, ledger: Ledger) -> None:
    """Let an Opacus accountant charge each step before the optimizer makes it.

    The optimizer then raises `Refused` and leaves the model as it was.
    """
    count = accountant.step

    def step(*, noise_multiplier: float, sample_rate: float) -> None:
        ledger.charge([Step(_sampled(noise_multiplier, sample_rate), 1.0)])
        count(noise_multiplier=noise_multiplier, sample_rate=sample_rate)

    accountant.step = step


def _sampled(noise: float, rate: float) -> Mechanism:
    try:
        return Gaussian(noise) if rate == 1.0 else PoissonGaussian(noise, rate)
    except InvalidInput as error:
        raise CannotBeCharged(str(error)) from error


# --- Flower ---


def steps_of_flower(accountant: Any) -> list[Step]:
    """Return the steps that a Flower accountant has composed; a record is a client.

    Raises:
        CannotBeCharged: clients are sampled in a way that is not known here.
    """
    return [
        _round(accountant, **one["event"], count=one["count"])
        for one in accountant.state_dict()["compositions"]
    ]


def charge_each_round(accountant: Any, ledger: Ledger) -> None:
    """Let a Flower accountant charge each round before the strategy returns its aggregate."""
    compose = accountant.compose

    def charged(event: Any, count: int = 1) -> None:
        ledger.charge([_round(accountant, **vars(event), count=count)])
        compose(event, count)

    accountant.compose = charged


def _round(
    accountant: Any, *, noise_multiplier: float, sample_size: int, population_size: int, count: int
) -> Step:
    sampling = accountant.config.sampling_method.value
    if sampling == "poisson":
        rate = min(1.0, _above(sample_size / population_size))
        return Step(_sampled(noise_multiplier, rate), 1.0, count)
    if sampling in ("no-amplification", "without-replacement"):
        # In a sample of a fixed size, one more client takes the place of another one, and moves the
        # sum by up to twice the clip norm. Rényi divergence is quasi-convex, so that of the
        # mixtures over all samples is at most that of the worst pair of samples.
        return Step(_sampled(noise_multiplier, 1.0), 2.0, count)
    raise CannotBeCharged(f"how clients are sampled is not known: {sampling!r}")


def main(path: str = "releases.db") -> None:
    """Charge releases of four kinds, until one is refused."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    step = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))
    releases = {
        "a mean with Gaussian noise": list(steps_of_event(GaussianDpEvent(10.0))),
        "a count with epsilon 0.1": [Step(PureDP(), 0.1)],
        "a training of 200 steps": list(steps_of_event(SelfComposedDpEvent(step, 200))),
        "a training of 2,000 steps": list(steps_of_event(SelfComposedDpEvent(step, 2000))),
        "a second count": [Step(PureDP(), 0.1)],
    }
    order = order_for(releases["a training of 200 steps"], epsilon=2.0, delta=1e-6)
    with Ledger(path, "survey", epsilon=2.0, delta=1e-6, order=order) as ledger:
        for name, steps in releases.items():
            try:
                ledger.charge(steps)
                print(f"{name}: may leave")
            except Refused:
                print(f"{name}: refused")


if __name__ == "__main__":
    main(*sys.argv[1:])
