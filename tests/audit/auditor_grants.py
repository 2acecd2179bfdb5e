"""What one user is granted of a step that comes with norms, and what is charged for it.

One thing is taken from the decisions: the norm that budget-aware clipping granted, a square root
for which the documents give a range. The auditor checks the range and charges by the norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from tests.audit.auditor_accounts import Account, Dataset, exact_cost
from tests.audit.auditor_rosters import Cost

_SHORTFALL = Fraction(1, 2**49)


def granted_norm(
    chain: Sequence[Dataset],
    accounts: Sequence[Account],
    charge: Mapping[str, Any],
    norm: float,
    witness: float | None,
) -> tuple[float | None, list[int], list[Cost]]:
    """The norm that a chain of budgets grants a user, None for who is left out; those that would
    grant nothing; and what each of them charges.
    """
    lasting = []  # of each budget: what it can pay of the step
    for dataset, account in zip(chain, accounts, strict=True):
        dataset.bind(account, dataset.cost(charge, norm))
        lasting.append(_payable(dataset, account, charge["reserve"]))
    costs = _costs_at(chain, accounts, charge, norm)
    lefts = [
        dataset.left(account, charge["reserve"])
        for dataset, account in zip(chain, accounts, strict=True)
    ]
    short = [
        number
        for number, (cost, left) in enumerate(zip(costs, lefts, strict=True))
        if any(units > rest for units, rest in zip(cost, left, strict=True))
    ]
    if not short:
        return norm, [], costs
    refusing = short
    if chain[0].policy["on_exhaustion"] == "clip":
        refusing = [number for number in short if not min(lasting[number])]
    if refusing:
        assert witness is None, f"a norm of {witness} is granted where a budget has nothing for it"
        return None, refusing, [(0,) * len(cost) for cost in costs]
    assert witness is not None, "nobody is granted what all budgets can pay for"
    assert 0 < witness < norm
    exact = [
        exact_cost(dataset.measure, charge["mechanism"], float(charge["scale"]), witness)
        for dataset in chain
    ]
    ends = [min(payable) for payable in lasting]
    pairs = list(zip(exact, ends, strict=True))
    assert all(cost <= end for cost, end in pairs), f"{witness} costs more than is left of {ends}"
    assert any(exact[n] >= ends[n] * (1 - _SHORTFALL) ** 2 for n in short), (
        f"a granted norm of {witness} wastes more than documented of {ends}"
    )
    costs = _costs_at(chain, accounts, charge, witness)
    for number, left in enumerate(lefts):
        if ends[number] - math.ceil(exact[number]) <= ends[number] // 2**48:
            spent_to_the_end, at = list(costs[number]), lasting[number].index(ends[number])
            spent_to_the_end[at] = left[at]
            costs[number] = tuple(spent_to_the_end)
    return witness, [], costs


def _costs_at(
    chain: Sequence[Dataset], accounts: Sequence[Account], charge: Mapping[str, Any], norm: float
) -> list[Cost]:
    return [
        dataset.at_orders(account, dataset.cost(charge, norm))
        for dataset, account in zip(chain, accounts, strict=True)
    ]


def _payable(dataset: Dataset, account: Account, reserve: float) -> list[int]:
    """What is left at each order, as units of the step at order 1, rounded down."""
    orders = [Fraction(order) for order in dataset.at_orders(account, dataset.orders or (1,))]
    left = dataset.left(account, reserve)
    return [math.floor(rest / order) for rest, order in zip(left, orders, strict=True)]
