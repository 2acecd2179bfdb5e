"""Poisson sampling: each user is drawn by an independent coin.

Coins are secret: a party that can predict them knows which users take part, and amplification by
sampling is lost. So every draw has its own generator, seeded by the operating system.
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
        not_private_generator: for tests and figures that must be repeated. A party that knows its
            seed knows which users were drawn, so a training with it is not private.

    Returns:
        Positions, increasing.

    Raises:
        InvalidInput: ``sampling_rate`` is no probability.
    """
    rate = PoissonGaussian(1.0, sampling_rate).sampling_rate
    if rate == 1.0:
        return np.flatnonzero(admitted)
    coins = not_private_generator or np.random.default_rng(secrets.randbits(256))
    # Draw the number of heads among n coins, then their places: the work is that of the drawn
    # users.
    drawn = coins.choice(len(admitted), coins.binomial(len(admitted), rate), False, shuffle=False)
    return np.sort(drawn[admitted[drawn]]).astype(np.int64)
