"""`turnstile verify` finds nothing wrong in a service that survived faults."""

from __future__ import annotations

from typing import Any

import pytest

from streams.replay.findings import Check, Verified
from streams.replay.verify import verify
from tests.simulation.archive import WorldArchive
from tests.simulation.audit import Audit
from tests.simulation.received import ReceivedDecisions
from tests.simulation.simulation import simulate

SEEDS = range(310, 318)


@pytest.mark.slow
def test_verify_finds_nothing_if_the_auditor_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audited = Audit.when_settled
    seen: list[Verified] = []

    async def when_settled(audit: Audit, received: ReceivedDecisions) -> Any:
        await audited(audit, received)
        seen.append(verify(WorldArchive(audit.world)))

    monkeypatch.setattr(Audit, "when_settled", when_settled)
    for seed in SEEDS:
        simulate(seed)
    assert len(seen) >= len(SEEDS) // 2
    for part in (part for result in seen for part in result.partitions):
        # Only a trimmed log without a snapshot cannot be compared.
        assert {finding.check for finding in part.findings} <= {Check.LOG}, part.findings
        assert (part.state_at is not None) is not bool(part.impossible)
        assert bool(part.impossible) is (part.start > 0 and part.began == 0)
    # Some logs were trimmed and applied from a snapshot on.
    assert any(part.began for result in seen for part in result.partitions)
