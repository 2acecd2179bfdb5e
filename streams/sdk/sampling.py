"""Poisson sampling: every user is drawn by a coin of its own, or not.

Coins are secret: whoever can foresee them knows who takes part, and amplification by sampling is
gone. So every draw is made by a generator of its own, seeded by the operating system.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from accounting.costs.mechanisms import PoissonGaussian


def poisson_sample(
    admitted: NDArray[np.bool_],
    sampling_rate: float,
    *,
    not_private_generator: np.random.Generator | None = None,
) -> NDArray[np.int64]:
    """Draw each admitted user with this probability, independently.

    Args:
        admitted: bool (n,).
        sampling_rate: from 0 to 1.
        not_private_generator: for tests and figures that must be repeated. Whoever knows its seed
            knows who was drawn: a training with it is not private.

    Returns:
        Positions, in order.

    Raises:
        InvalidInput: ``sampling_rate`` is no probability.
    """
    rate = PoissonGaussian(1.0, sampling_rate).sampling_rate
    if rate == 1.0:
        return np.flatnonzero(admitted)
    coins = not_private_generator or np.random.default_rng(secrets.randbits(256))
    # As many as n coins give, then which: the work is that of those drawn.
    drawn = coins.choice(len(admitted), coins.binomial(len(admitted), rate), False, shuffle=False)
    return np.sort(drawn[admitted[drawn]]).astype(np.int64)
