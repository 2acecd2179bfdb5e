"""Convert units of zCDP to units at a Rényi order, and back, exactly.

A Gaussian step of z units of rho costs ceil(a z) units at order a in exact arithmetic, so an
auditor can recompute every state with rational numbers. Orders are float64, and many common ones,
such as 1.1, have 53 significant bits. The product is therefore computed from its rounded value and
its rounding error (`accounting.exact.products`) while z is exact in float64 (512 nats), and in
128-bit integers above (`accounting.exact.wide`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from accounting.exact import wide
from accounting.exact.argument_checks import FloatArray, IntArray
from accounting.exact.products import mantissas, split, two_product_error
from accounting.exact.units import MAX_COST_UNITS

_BLOCK: Final = 16384  # products at a time, so that the temporaries stay in the cache
_EXACT_INTEGERS: Final = 2**53


def units_at_orders(units: IntArray, orders: FloatArray) -> IntArray:
    """Return min(ceil(order * units), MAX_COST_UNITS), exactly; shape (n, k).

    Args:
        units: of zCDP, shape (n,), 0 to `MAX_COST_UNITS`; saturated units stay saturated.
        orders: shape (k,), > 1.
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
    for start in range(0, large.size, rows):
        some = large[start : start + rows]
        results[some] = _large_products_up(units[some], orders)
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
    large = np.nonzero(limits > _EXACT_INTEGERS)
    for start in range(0, large[0].size, _BLOCK):
        entries = tuple(axis[start : start + _BLOCK] for axis in large)
        quotients[entries] = _large_quotients(limits[entries], orders[entries[1]])
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


def _large_products_up(units: IntArray, orders: FloatArray) -> IntArray:
    """Return `units_at_orders` of one block, for any units."""
    # The product of rounded numbers is within a relative 2**-51 of the exact one.
    rounded = units.astype(np.float64)[:, np.newaxis] * orders
    results = np.full(rounded.shape, MAX_COST_UNITS)
    open_entries = np.nonzero(rounded < (1.0 + 2.0**-50) * MAX_COST_UNITS)
    numerators, shifts = _fractions(orders[open_entries[1]])
    factors = units[open_entries[0]].view(np.uint64)
    products = wide.shifted_right_up(wide.product(numerators, factors), shifts)
    results[open_entries] = np.minimum(products, np.uint64(MAX_COST_UNITS)).astype(np.int64)
    return results


def _large_quotients(limits: IntArray, orders: FloatArray) -> IntArray:
    """Return floor(limit / order) of each pair, shape (m,), for limits of at least one unit."""
    numerators, shifts = _fractions(orders)
    zero = np.zeros_like(numerators)
    dividend = wide.shifted_left(wide.Wide(zero, limits.astype(np.uint64)), shifts)
    # For whole numbers, floor(x / y) is ceil((x + 1) / y) - 1. The last digits of x are 0.
    one_more = wide.Wide(dividend.high, dividend.low + np.uint64(1))
    estimates = np.floor(limits / orders).astype(np.int64)
    return wide.quotient_up(one_more, wide.Wide(zero, numerators), estimates) - 1


def _fractions(orders: FloatArray) -> tuple[wide.UintArray, wide.UintArray]:
    """Return (m, b) with order == m / 2**b, b from 12 to 52."""
    numerators, exponents = mantissas(orders)
    return numerators, (-exponents).astype(np.uint64)


def _short_fractions(orders: FloatArray, largest: int) -> tuple[IntArray, IntArray] | None:
    """Return (numerators, shifts), order == numerator / 2**shift, if products fit in int64."""
    ratios = [order.as_integer_ratio() for order in orders.tolist()]
    if max(top for top, _ in ratios) * largest + max(bottom for _, bottom in ratios) >= 2**62:
        return None
    numerators = np.array([top for top, _ in ratios], dtype=np.int64)
    shifts = np.array([bottom.bit_length() - 1 for _, bottom in ratios], dtype=np.int64)
    return numerators, shifts
