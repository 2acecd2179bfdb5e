"""Convert a guarantee for one user to groups of users, or to the replacement of a user's data.

The service does not use these conversions. Neighbouring datasets differ by adding or removing one
user, as in Feldman and Zrnic, Koskela et al. and Yu et al. The replacement of a user's data is a
removal and an addition. So a guarantee for every user implies one for a group of two, by a chain P,
Q, R of output distributions in which neighbours differ by one user.

- zCDP: rho becomes users^2 rho (Bun and Steinke, "Concentrated differential privacy", 2016). For
  two users, by Hoelder's inequality at p = 2 - 1/a, D_a(P || R) is at most
  2 D_pa(P || Q) + 2 (a - 1) / a D_{2a}(Q || R), which is 4 a rho.
- GDP: mu becomes users mu (Dong, Roth and Su, "Gaussian differential privacy", 2022).
- Rényi: by Hoelder's inequality at p = 2, D_a(P || R) is at most
  (a - 1/2) / (a - 1) D_{2a}(P || Q) + D_{2a-1}(Q || R) (Mironov, "Rényi differential privacy",
  2017), so a budget at an order implies one at half that order.

This is the guarantee of the whole dataset, for filtered steps, sampled or not. For unsampled
Gaussian steps it equals that of norms twice as long, and is exact. For sampled steps a direct
analysis of replacement would be tighter; it is not implemented. Reports cannot be converted: a
realised history exists for the user's own data only.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.conversions.amounts import renyi_curve
from accounting.exact.errors import InvalidInput
from accounting.exact.products import product_up
from accounting.exact.validation import FloatArray, nonnegative_array, whole_number

_MAX_USERS: Final = 2**26  # its square is exact in float64
# The relative error of a quotient of two differences and a product.
_ERROR: Final = 2.0**-50


def zcdp_of_group(rho: npt.ArrayLike, users: int = 2) -> FloatArray:
    """Return the rho of groups of `users` from the rho of each single user, rounded up.

    Args:
        rho: nats, >= 0, of any shape.
        users: from 1 to 2**26; 2 for the replacement of one user.
    """
    size = whole_number("users", users, 1, _MAX_USERS)
    return product_up(float(size * size), nonnegative_array("rho", rho))[()]


def gdp_of_group(mu: npt.ArrayLike, users: int = 2) -> FloatArray:
    """Return the mu of groups of `users` from the mu of each single user, rounded up.

    Args:
        mu: >= 0, of any shape.
        users: from 1 to 2**26; 2 for the replacement of one user.
    """
    size = whole_number("users", users, 1, _MAX_USERS)
    return product_up(float(size), nonnegative_array("mu", mu))[()]


def renyi_of_pair(orders: npt.ArrayLike, rdp: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return (orders, divergences) of pairs of users, or of replacing one user, rounded up.

    The returned orders are half of the given orders above 2; other orders imply nothing.

    Args:
        orders: shape (k,), > 1.
        rdp: the Rényi divergence of every single user at each, nats, >= 0, shape (k,) or (n, k).

    Raises:
        InvalidInput: for other arguments, or if no order is above 2.
    """
    alphas, divergences = renyi_curve(orders, rdp)
    kept = alphas > 2.0
    if not kept.any():
        raise InvalidInput("orders", alphas.tolist(), "above 2, at least one of them")
    halves = 0.5 * alphas[kept]
    with np.errstate(over="ignore"):
        factor = (2.0 * halves - 1.5) / (halves - 1.0) * (1.0 + _ERROR)
        return halves, divergences[..., kept] * factor
