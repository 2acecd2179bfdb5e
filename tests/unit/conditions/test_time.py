"""Data that change while queries run, and reports at a time that outputs decide."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import prod

import numpy as np

from accounting import MEASURES, Gaussian, NormGrid, ReportAccountant
from tests.unit.accounting.stopping import reached_delta

# --- A6: data that change while queries run ---


MECHANISMS, FAILURE = 8, Fraction(1, 64)


def seen(is_charged_first: bool) -> Fraction:
    """The probability that one user's datum is seen.

    Each mechanism fails with probability `FAILURE`, shows whether it has, and if so shows the next
    datum that it is given. The datum goes to the first mechanism that has failed.
    """
    total = Fraction(0)
    for failed in product((False, True), repeat=MECHANISMS):
        chance = prod((FAILURE if one else 1 - FAILURE for one in failed), start=Fraction(1))
        spent, admitted = Fraction(0), []
        for number in range(MECHANISMS):
            is_given = number == (failed.index(True) if True in failed else 0)
            can_pay = False
            if is_charged_first or is_given:
                can_pay = spent + FAILURE <= FAILURE  # the budget is one failure
                spent += FAILURE if can_pay else 0
            admitted.append(can_pay and is_given and failed[number])
        total += chance * any(admitted)
    return total


def test_charge_after_the_first_answer_is_too_small() -> None:
    """Parallel composition fails: each user pays for one mechanism, and is seen more often."""
    assert seen(is_charged_first=False) == 1 - (1 - FAILURE) ** MECHANISMS > 7 * FAILURE
    assert seen(is_charged_first=True) <= FAILURE


# --- A8: reports ---


def test_a_report_is_no_guarantee_where_outputs_decide_the_stop() -> None:
    steps, delta = 64, 1e-5
    accountant = ReportAccountant(Gaussian(8.0), NormGrid(1.0, 1))
    reported = accountant.epsilon(np.arange(1, steps + 1)[:, np.newaxis], delta)
    fixed_stop = [np.inf] * (steps - 1) + [float(reported[-1])]
    assert reached_delta(fixed_stop, 1.0) <= delta * 1.001
    assert reached_delta(reported.tolist(), 1.0) > 9 * delta
    # The any-time epsilon of what was charged, beside it.
    spent = np.sqrt(np.arange(1, steps + 1) / 64.0)[:, np.newaxis]
    shown = MEASURES["gdp"].epsilon(spent, delta, when="any time", budget=2**44)
    assert reached_delta(shown.tolist(), 1.0) <= delta
