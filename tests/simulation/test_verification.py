"""`turnstile verify` finds nothing wrong with a service that was under every fault."""

from __future__ import annotations

from typing import Any

import pytest

from streams.replay.findings import Check, Verified
from streams.replay.verify import verify
from tests.simulation.audit import Audit
from tests.simulation.seen import Seen
from tests.simulation.simulation import simulate
from tests.simulation.told import Told

SEEDS = range(310, 318)


@pytest.mark.slow
def test_nothing_wrong_is_found_where_the_auditor_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audited = Audit.when_settled
    seen: list[Verified] = []

    async def when_settled(audit: Audit, told: Told) -> Any:
        await audited(audit, told)
        seen.append(verify(Seen(audit.world), Seen(audit.world)))

    monkeypatch.setattr(Audit, "when_settled", when_settled)
    for seed in SEEDS:
        simulate(seed)
    assert len(seen) >= len(SEEDS) // 2
    for part in (part for result in seen for part in result.partitions):
        # A log whose beginning is gone without a snapshot is all that cannot be compared.
        assert {finding.check for finding in part.findings.kept} <= {Check.LOG}, part.findings.kept
        assert (part.state_at is not None) is not bool(part.impossible)
        assert bool(part.impossible) is (part.start > 0 and part.began == 0)
    # Faults have left their traces: some logs were applied from a snapshot on.
    assert any(part.began for result in seen for part in result.partitions)
