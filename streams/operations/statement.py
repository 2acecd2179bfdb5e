"""The guarantee of a dataset, stated for people outside: model cards, registries of deployments.

The guarantee is that of the outermost budget that a charge draws on. It covers all datasets that
draw on this budget together. A nested dataset's own budget limits what is charged to it, and is
listed, but is no guarantee for releases that follow from releases of the other datasets.
docs/guarantees.md has the conditions in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context

from streams.records import Policy

_DIGITS = Context(prec=6, rounding=ROUND_CEILING)


def rounded_up(number: float) -> str:
    """Return a number above 0 with six digits, rounded up."""
    return f"{float(_DIGITS.create_decimal(number)):.6g}"


@dataclass(frozen=True)
class StatedBudget:
    """A budget that every charge to a dataset has to fit.

    Attributes:
        kind: the guarantee's name.
        unit: the unit of the amounts.
        amounts: in this unit, rounded up; one per order if there are orders.
        orders: the Rényi orders; empty if there are none.
        any_order: whether each user is charged at one of the orders only, and it is not public at
            which; otherwise the budgets of all orders hold.
        epsilon: what the budget implies at the statement's delta, rounded up.
    """

    dataset: str
    measure: str
    kind: str
    unit: str
    amounts: list[float]
    orders: list[float]
    any_order: bool
    epsilon: float

    @classmethod
    def of(cls, policy: Policy, delta: float) -> StatedBudget:
        """Return the budget of a dataset."""
        row = policy.row
        return cls(
            dataset=policy.dataset,
            measure=policy.measure,
            kind=row.kind,
            unit=row.unit,
            amounts=row.stated(policy.budget).tolist(),
            orders=list(policy.orders),
            any_order=policy.per_user_order is True,
            epsilon=policy.epsilon(delta),
        )


@dataclass(frozen=True)
class Statement:
    """The guarantee of a dataset at one delta.

    Attributes:
        epsilon: of ``budget``, rounded up.
        delta: the delta of the guarantee; 0 if the measure has none.
        budget: the outermost budget; of several, that of the least epsilon.
        parents: the budgets of the dataset and of the datasets around it, the nearest first.
        covered: what the guarantee holds for.
        not_covered: what depends on data and must not be published.
        ensured: what the service ensures.
        assumed: what the operator and the trainers have to ensure.
    """

    dataset: str
    epsilon: float
    delta: float
    measure: str
    budget: StatedBudget
    parents: list[StatedBudget]
    ensured: list[str]
    assumed: list[str]
    covered: list[str]
    unit: str = "user"
    neighbours: str = "add or remove one user with all of the user's data"
    not_covered: list[str] = field(
        default_factory=lambda: [
            "which users were admitted, halted or exhausted, and how many",
            "norms, sampled users, odometers, explanations and reports",
            "metrics on training data, and choices made by looking at them",
            "running times and the sizes of records",
        ]
    )

    def text(self, subject: str | None = None) -> str:
        """Return the guarantee as a paragraph.

        Args:
            subject: what is released; by default, what is charged to the dataset.
        """
        name = subject or f"What is released from dataset {self.dataset!r}"
        epsilon = rounded_up(self.epsilon)
        parameters = f"({epsilon}, {self.delta:g})" if self.delta else epsilon
        return (
            f"{name} is {parameters}-differentially private for every user. Neighbouring "
            "datasets differ by adding or removing one user with all of the user's data. The "
            f"guarantee covers {'; '.join(self.covered)}, together, whenever the runs end. It does "
            f"not cover {'; '.join(self.not_covered)}."
        )


def statement_of(policies: Sequence[Policy], delta: float) -> Statement:
    """Return the guarantee of a dataset.

    Args:
        policies: the policies of the dataset and of the others that its charges draw on, the
            nearest first: its ancestors, and the dataset that has the whole budget of a share.
        delta: the delta of the guarantee, strictly between 0 and 1.

    Raises:
        InvalidInput: for another delta.
    """
    policy, names = policies[0], {each.dataset for each in policies}
    budgets = [StatedBudget.of(each, delta) for each in policies]
    least, *others = sorted(
        (
            (stated, each)
            for stated, each in zip(budgets, policies, strict=True)
            if not each.parents and each.share_of not in names
        ),
        key=lambda found: found[0].epsilon,
    )
    budget, outermost = least
    return Statement(
        dataset=policy.dataset,
        epsilon=budget.epsilon,
        delta=delta if outermost.row.has_delta else 0.0,
        measure=outermost.measure,
        budget=budget,
        parents=budgets,
        ensured=_ensured(policies),
        assumed=[
            *_assumed(policies),
            *(
                f"no step of these datasets follows from releases of other datasets that draw on "
                f"the budget of {other.dataset!r}"
                for _, other in others
            ),
        ],
        covered=[
            f"all releases charged to dataset {outermost.dataset!r} and to the datasets that draw "
            "on its budget",
            "everything that is computed from these releases",
        ],
    )


def _ensured(policies: Sequence[Policy]) -> list[str]:
    found = [
        "a user whose charge does not fit the budget is not admitted to the step",
        "the budget is never raised or renewed",
    ]
    if all(policy.assume_independent_timing is not True for policy in policies):
        found.append("runs that draw on one budget charge it one after the other")
    if any(policy.share_of for policy in policies):
        found.append("the shares of the budget are fixed, and add up to at most the budget")
    return found


def _assumed(policies: Sequence[Policy]) -> list[str]:
    found = [
        "all data of a person are charged under one user id",
        "the steps, their noise, clip norms and sampling rates, and the end of a run follow from "
        "public facts and earlier releases",
        "each step is charged before its release, to all users whose data it may use, and leaves "
        "out users who are not admitted",
        "each contribution is clipped to the norm that was charged, and the charged noise is added "
        "once",
        "every denominator is public",
        "nothing else that depends on the data is published",
    ]
    if any(policy.assume_independent_timing is True for policy in policies):
        found.append("the order in which runs charge the budget does not depend on the data")
    names = {policy.dataset for policy in policies}
    found += [
        f"no step follows from releases of the other shares of dataset {policy.share_of!r}"
        for policy in policies
        if policy.share_of and policy.share_of not in names
    ]
    return found
