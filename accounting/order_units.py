"""Units at a Renyi order from units of zCDP, and back, exactly.

A Gaussian step of z units of rho costs ceil(a z) units at order a, in exact arithmetic, so that
anybody can recompute a state with rational numbers. Orders are float64 and many usual ones, such
as 1.1, have 53 significant bits; the product is therefore formed from its rounded value and its
rounding error (see `accounting.rounding`) as long as z is exact in float64 (512 nats), and in
Python integers above.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np

from accounting.rounding import split, two_product_error
from accounting.units import MAX_COST_UNITS
from accounting.validation import FloatArray, IntArray

_BLOCK: Final = 16384  # products at a time, so that the temporaries stay in the cache
_EXACT_INTEGERS: Final = 2**53


def units_at_orders(units: IntArray, orders: FloatArray) -> IntArray:
    """Return min(ceil(order * units), MAX_COST_UNITS), exactly; shape (n, k).

    `units`: shape (n,), 0 to `MAX_COST_UNITS`, of zCDP; `orders`: shape (k,), > 1.
    Saturated units give saturated units at every order.
    """
    results = np.empty((units.size, orders.size), dtype=np.int64)
    short = _short_fractions(orders, int(units.max())) if units.size else None
    if short is not None:
        numerators, shifts = short
        np.multiply(units[:, np.newaxis], numerators, out=results)
        if shifts.any():
            results += (1 << shifts) - 1
            results >>= shifts
        return results
    rows = max(1, _BLOCK // orders.size)
    for start in range(0, units.size, rows):
        block = slice(start, start + rows)
        results[block] = _products_up(units[block], orders)
    large = np.flatnonzero(units > _EXACT_INTEGERS)
    if large.size:
        exact_orders = [Fraction(order) for order in orders.tolist()]
        distinct, position = np.unique(units[large], return_inverse=True)
        decided = [
            [min(math.ceil(order * value), MAX_COST_UNITS) for order in exact_orders]
            for value in distinct.tolist()
        ]
        results[large] = np.array(decided, dtype=np.int64)[position]
    return results


def units_within_orders(limits: IntArray, orders: FloatArray) -> IntArray:
    """Return the largest z with ceil(order * z) <= limit, that is floor(limit / order), exactly.

    `limits`: shape (n, k), 0 to `MAX_COST_UNITS`; `orders`: shape (k,), > 1. Shape (n, k),
    in units of zCDP.
    """
    # While limits are exact in float64, rounding is monotone and whole numbers are exact: the
    # rounded quotient may have been carried up to the next whole number, and no further.
    quotients = np.floor(limits / orders).astype(np.int64)
    for column, order in enumerate(orders.tolist()):
        candidate = quotients[:, column]  # a view
        limit = limits[:, column]
        one_order = orders[column : column + 1]
        candidate -= units_at_orders(candidate, one_order)[:, 0] > limit
        large = np.flatnonzero(limit > _EXACT_INTEGERS)
        exact_order = Fraction(order)
        for row in large.tolist():
            candidate[row] = math.floor(int(limit[row]) / exact_order)
    return quotients


def _products_up(units: IntArray, orders: FloatArray) -> IntArray:
    """Return `units_at_orders` for units up to 2**53; above, any number."""
    values = units.astype(np.float64)[:, np.newaxis]
    product = values * orders
    error = two_product_error(product, *split(values), *split(orders))
    # product + error is exact. What rounding the product up has added may absorb the error; if
    # the product is an integer, nothing was added and the error is rounded up by itself.
    whole = np.ceil(product)
    error += product - whole
    np.ceil(error, out=error)
    saturated = product > float(MAX_COST_UNITS)
    if saturated.any():
        whole[saturated] = float(MAX_COST_UNITS)
        error[saturated] = 0.0
    results: IntArray = whole.astype(np.int64)
    results += error.astype(np.int64)
    return np.minimum(results, MAX_COST_UNITS, out=results)


def _short_fractions(orders: FloatArray, largest: int) -> tuple[IntArray, IntArray] | None:
    """Return (numerators, shifts), order == numerator / 2**shift, if products fit in int64."""
    ratios = [order.as_integer_ratio() for order in orders.tolist()]
    if max(top for top, _ in ratios) * largest + max(bottom for _, bottom in ratios) >= 2**62:
        return None
    numerators = np.array([top for top, _ in ratios], dtype=np.int64)
    shifts = np.array([bottom.bit_length() - 1 for _, bottom in ratios], dtype=np.int64)
    return numerators, shifts
