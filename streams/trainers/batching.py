"""How batches may be drawn: by Poisson sampling, and in no other way.

The cost that is charged for a sampled step is proven for users who are drawn independently, each
with the rate that was charged. Whoever draws otherwise and is charged as if not spends more than is
counted, often by orders of magnitude. Such batches are refused by name.
"""

from __future__ import annotations

from typing import Final

from streams.sdk.errors import InvalidRequest

_UNSOUND: Final = {
    "fixed": (
        "a batch of a fixed size is not a Poisson sample: its cost at the same rate is larger, and "
        "that of replacing a user another one"
    ),
    "shuffled": (
        "batches of shuffled passes are not amplified as Poisson samples are (arXiv 2411.04205): "
        "who was in one batch of a pass is in no other"
    ),
    "weighted": (
        "with weights some users are drawn more often than at the rate that is charged: their real "
        "cost is above it, by any factor"
    ),
    "truncated": (
        "a Poisson sample cut to a largest size depends on how many others were drawn: users are "
        "not independent any more. Large samples are worked on in parts instead"
    ),
    "padded": (
        "a sample filled up to a size depends on how many others were drawn: users are not "
        "independent any more"
    ),
    "sequential": "without coins nothing is amplified: charge sampling_rate=1",
    "redrawn": (
        "a sample that is drawn again, or a step that is skipped, because of which users were "
        "drawn is conditioned on all users' coins: users are not independent any more"
    ),
    "drawn-users": (
        "a roster of the users who were drawn charges them the amplified cost only when drawn: "
        "enrol all users, who are charged at every step"
    ),
}
_NAMES: Final = {
    "fixed-size": "fixed",
    "fixed_size": "fixed",
    "rejection": "redrawn",
    "shuffle": "shuffled",
    "uniform": "fixed",
    "without-replacement": "fixed",
}


def check_sampling(sampling: object) -> None:
    """Refuse whatever is not Poisson sampling, with the reason.

    Raises:
        InvalidRequest: the name of another way to draw batches, or no name of one.
    """
    if sampling == "poisson":
        return
    reason = _UNSOUND.get(_NAMES.get(str(sampling), str(sampling)))
    if reason is None:
        raise InvalidRequest(f"sampling is {sampling!r}; it must be 'poisson'")
    raise InvalidRequest(f"sampling is {sampling!r}, and {reason}. Use sampling='poisson'")
