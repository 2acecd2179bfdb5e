"""Convert units of zCDP to units at a Rényi order, and back, exactly.

A Gaussian step of z units of rho costs ceil(a z) units at order a in exact arithmetic, so an
auditor can recompute every state with rational numbers. Orders are float64, and many common ones,
such as 1.1, have 53 significant bits. The product is therefore computed from its rounded value and
its rounding error (`accounting.exact.products`) while z is exact in float64 (512 nats), and in
Python's integers above.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from accounting.exact.argument_checks import FloatArray, IntArray
from accounting.exact.products import split, two_product_error
from accounting.exact.units import MAX_COST_UNITS

_BLOCK: Final = 16384  # products at a time, so that the temporaries stay in the cache
_EXACT_INTEGERS: Final = 2**53


def units_at_orders(units: IntArray, orders: FloatArray) -> IntArray:
    """Return min(ceil(order * units), MAX_COST_UNITS), exactly; shape (n, k).

    Args:
        units: charges in zCDP, shape (n,), 0 to `MAX_COST_UNITS`; saturated ones stay saturated.
        orders: shape (k,), > 1.
    """
    results = np.empty((units.size, orders.size), dtype=np.int64)
    ratios = [order.as_integer_ratio() for order in orders.tolist()]
    short = _short_fractions(ratios, int(units.max())) if units.size else None
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
    large = (units > _EXACT_INTEGERS) & (units < MAX_COST_UNITS)
    for row in np.flatnonzero(large).tolist():
        results[row] = [
            min(-(-top * int(units[row]) // bottom), MAX_COST_UNITS) for top, bottom in ratios
        ]
    return results


def units_within_orders(limits: IntArray, orders: FloatArray) -> IntArray:
    """Return the largest z with ceil(order * z) <= limit, that is floor(limit / order), exactly.

    Args:
        limits: shape (n, k), 0 to `MAX_COST_UNITS`.
        orders: shape (k,), > 1.

    Returns:
        Units of zCDP, shape (n, k).
    """
    # While limits are exact in float64, rounding is monotone and whole numbers are exact, so
    # rounding may raise the quotient to the next whole number, and no further.
    quotients = np.floor(limits / orders).astype(np.int64)
    for column in range(orders.size):
        candidate = quotients[:, column]  # a view
        limit = limits[:, column]
        one_order = orders[column : column + 1]
        candidate -= units_at_orders(candidate, one_order)[:, 0] > limit
    ratios = [order.as_integer_ratio() for order in orders.tolist()]
    for row, column in np.argwhere(limits > _EXACT_INTEGERS).tolist():
        top, bottom = ratios[column]
        quotients[row, column] = int(limits[row, column]) * bottom // top
    return quotients


def _products_up(units: IntArray, orders: FloatArray) -> IntArray:
    """Return `units_at_orders` of one block for units up to 2**53; above, any number."""
    values = units.astype(np.float64)[:, np.newaxis]
    product = values * orders
    error = two_product_error(product, *split(values), *split(orders))
    # product + error is exact. Rounding the product up may absorb the error; if the product is an
    # integer, nothing was added and the error is rounded up on its own.
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


def _short_fractions(
    ratios: list[tuple[int, int]], largest: int
) -> tuple[IntArray, IntArray] | None:
    """Return (numerators, shifts), order == numerator / 2**shift, if products fit in int64."""
    if max(top for top, _ in ratios) * largest + max(bottom for _, bottom in ratios) >= 2**62:
        return None
    numerators = np.array([top for top, _ in ratios], dtype=np.int64)
    shifts = np.array([bottom.bit_length() - 1 for _, bottom in ratios], dtype=np.int64)
    return numerators, shifts
