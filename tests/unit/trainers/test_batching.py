from __future__ import annotations

import pytest

from streams.sdk.errors import InvalidRequest
from streams.trainers.batching import check_sampling


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ("fixed", "not a Poisson sample"),
        ("fixed-size", "not a Poisson sample"),
        ("without-replacement", "not a Poisson sample"),
        ("shuffled", "2411.04205"),
        ("shuffle", "2411.04205"),
        ("weighted", "weights"),
        ("truncated", "truncated"),
        ("padded", "padded"),
        ("sequential", "sampling_rate=1"),
        ("lottery", "it must be 'poisson'"),
        (None, "it must be 'poisson'"),
    ],
)
def test_other_batches_than_poisson_samples_are_refused_by_name_with_the_reason(
    sampling: object, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        check_sampling(sampling)


def test_poisson_sampling_is_taken() -> None:
    check_sampling("poisson")
