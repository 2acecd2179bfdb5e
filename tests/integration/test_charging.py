"""Valid charges end to end: decisions agree with rational arithmetic and never change."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.audit.auditor_state import home
from tests.integration.service import Service


@pytest.fixture(autouse=True)
def everything_is_as_audited(shared: Service) -> Iterator[None]:
    yield
    shared.audit()


IDS = {
    "integers": [0, 1, -1, 2**63 - 1, -(2**63), 7],
    "strings": ["a", "ü", "名前", "x" * 256, "1", " ", "\x00", "🦊" * 63],
    "mixed": [1, "1", -1, "-1", 2**40, "b", "\n"],
}


@pytest.mark.parametrize("users", IDS.values(), ids=IDS)
def test_every_kind_of_user_id_is_charged_on_its_own(
    shared: Service, name: str, users: list[int | str]
) -> None:
    kinds = {type(user) for user in users}
    shared.client.create_dataset(
        name, measure="zcdp", budget=1.0, user_ids="mixed" if len(kinds) == 2 else "one-kind"
    )
    run = shared.client.run(name, "r")
    norms = np.arange(1, len(users) + 1) / 4
    for order in (users, users[::-1], users):
        values = norms if order == users else norms[::-1]
        decision = run.charge(order, values, noise_stddev=2.0)
        last = order == users and decision.step == 2
        assert decision.admitted.all() or last
    assert decision.admitted.tolist() == [3 * norm**2 <= 8 for norm in norms]
    state = shared.state(name)
    assert set(state) == set(users)
    partitions = {p for p in range(shared.partitions) for u in users if home(u, 3) == p}
    assert len(partitions) > 1
