"""Ways to draw batches: only Poisson sampling is accepted.

The charged cost of a sampled step is proven for users who are drawn independently, each with the
charged rate. Other ways spend more than is counted, often by orders of magnitude. They are rejected
by name.
"""

from __future__ import annotations

from typing import Final

from streams.sdk.errors import InvalidRequest

_UNSOUND: Final = {
    "fixed": (
        "a batch of a fixed size is not a Poisson sample: it costs more at the same rate, and more "
        "again if neighbouring datasets differ by replacing a user"
    ),
    "shuffled": (
        "batches of shuffled passes are not amplified as Poisson samples are (arXiv 2411.04205): "
        "a user in one batch of a pass is in no other batch"
    ),
    "weighted": (
        "with weights some users are drawn more often than at the charged rate: their real cost "
        "exceeds the charge by any factor"
    ),
    "truncated": (
        "a Poisson sample cut to a largest size depends on how many other users were drawn, so "
        "users are not independent any more. Large samples are computed in parts instead"
    ),
    "padded": (
        "a sample filled up to a size depends on how many other users were drawn, so users are "
        "not independent any more"
    ),
    "sequential": "without coins there is no amplification: charge sampling_rate=1",
    "redrawn": (
        "a sample that is drawn again, or a step that is skipped, because of which users were "
        "drawn is conditioned on all users' coins, so users are not independent any more"
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
    """Check that batches are Poisson samples; otherwise raise with the reason.

    Raises:
        InvalidRequest: another way to draw batches, or an unknown name.
    """
    if sampling == "poisson":
        return
    reason = _UNSOUND.get(_NAMES.get(str(sampling), str(sampling)))
    if reason is None:
        raise InvalidRequest(f"sampling is {sampling!r}; it must be 'poisson'")
    raise InvalidRequest(f"sampling is {sampling!r}, and {reason}. Use sampling='poisson'")
