"""From a policy to the rule that decides under it: one row a measure, one row a mechanism."""

from typing import get_args

import msgspec
import pytest
from msgspec import UNSET

import accounting
from accounting import Gaussian, Laplace, PureDP
from streams.ledger import validation
from streams.ledger.validation import MECHANISMS, check_mechanism
from streams.records import Charge, MechanismName, Policy, Reason, Rejection


def test_every_mechanism_of_the_wire_is_made_from_its_scale():
    assert set(MECHANISMS) == {*get_args(MechanismName), "poisson-gaussian"}
    made = [MECHANISMS[name](3.0, 1.0) for name in ("gaussian", "laplace", "pure-dp")]
    assert made == [Gaussian(3.0), Laplace(3.0), PureDP()]


COVERED = [
    # measure, behaviour at the end of a budget, what can be charged
    ("renyi", "halt", {"gaussian", "laplace", "pure-dp"}),
    ("zcdp", "halt", {"gaussian", "laplace", "pure-dp"}),
    ("gdp", "halt", {"gaussian"}),
    ("pure-dp", "halt", {"laplace", "pure-dp"}),
    ("zcdp", "clip", {"gaussian"}),
]


def step_of(mechanism: str, scale: float) -> Charge:
    about = {"dataset": "d", "run": "r", "attempt": 1, "step": 0, "users": b"", "norms": b""}
    return Charge(**about, mechanism=mechanism, scale=scale)


def policy_of(measure: str, on_exhaustion: str = "halt", orders: int = 0) -> Policy:
    return Policy(
        dataset="d",
        partitions=1,
        measure=measure,
        budget=[2**44] * max(1, orders),
        odometer_step=[2**41] * max(1, orders),
        orders=[2.0 + i for i in range(orders)],
        on_exhaustion=on_exhaustion,
        user_ids="mixed",
    )


@pytest.mark.parametrize("name", get_args(MechanismName))
@pytest.mark.parametrize(("measure", "on_exhaustion", "covered"), COVERED)
def test_what_a_policy_cannot_charge_is_refused(measure, on_exhaustion, covered, name):
    policy = policy_of(measure, on_exhaustion)
    charge = step_of(name, 2.0)
    if name in covered:
        assert check_mechanism(charge, 0.0, [policy]) == MECHANISMS[name](2.0, 1.0)
    else:
        with pytest.raises(Rejection) as refused:
            check_mechanism(charge, 0.0, [policy])
        assert refused.value.reason is Reason.INVALID_MECHANISM


@pytest.mark.parametrize(("clip_norm", "is_charged"), [(1.0, True), (1.01, False)])
def test_a_step_with_less_noise_than_the_shape_is_rejected(clip_norm, is_charged):
    policy = msgspec.structs.replace(policy_of("steps"), sampling_rate=1.0, noise_multiplier=2.0)
    validation.check_policy(policy)
    if is_charged:
        validation.check_covered(Gaussian(2.0), [policy], accounting.Measure.covers, clip_norm)
    else:
        with pytest.raises(Rejection) as refused:
            validation.check_covered(Gaussian(2.0), [policy], accounting.Measure.covers, clip_norm)
        assert refused.value.reason is Reason.INVALID_MECHANISM


@pytest.mark.parametrize("missing", ["sampling_rate", "noise_multiplier", "measure"])
def test_a_shape_of_steps_belongs_to_the_measure_steps(missing):
    shape = {"measure": "steps", "sampling_rate": 0.1, "noise_multiplier": 2.0}
    other = {"measure": "gdp"} if missing == "measure" else {missing: UNSET}
    policy = msgspec.structs.replace(policy_of("steps"), **{**shape, **other})
    with pytest.raises(Rejection) as refused:
        validation.check_policy(policy)
    assert refused.value.reason is Reason.INVALID_POLICY
