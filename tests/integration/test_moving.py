"""A dataset that moves to other topics, of another number of partitions, on the real parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streams.sdk.errors import RequestRejected
from streams.topics.topics import Topics
from tests.integration.command import Done, turnstile
from tests.integration.conftest import ServiceFactory
from tests.integration.service import Service

pytestmark = pytest.mark.drill

USERS = np.arange(80)


def test_nobody_has_more_left_than_before_and_everything_fits_on_both_sides(
    shared: Service, start_service: ServiceFactory, tmp_path: Path
) -> None:
    shared.client.create_dataset("d", budget=0.5, odometer_step=0.05)
    shared.client.create_dataset("inner", measure="renyi", epsilon=1.0, delta=1e-5, within="d")
    run = shared.client.run("d", "r")
    for _ in range(4):
        run.charge(USERS, np.linspace(0.0, 3.0, len(USERS)), noise_stddev=4.0)
    roster = shared.client.run("inner", "s").enrol(USERS[::2], clip_norm=1.0, levels=10)
    for _ in range(3):
        roster.charge(noise_stddev=6.0)
    shared.client.forget(7)
    receipt = tmp_path / "old.json"
    with start_service(partitions=5) as new:

        def move(*options: str) -> Done:
            settings = {"TURNSTILE_KAFKA": shared.kafka, "TURNSTILE_PREFIX": shared.prefix}
            return turnstile("move", "d", "--to", new.prefix, *options, environment=settings)

        new.client.create_dataset("other", budget=1.0)  # the topics are there with the first worker
        dry = move("--dry-run", "--json")
        assert dry.code == 0, dry
        assert dry.lines[-1]["would_move"] is True
        assert run.charge(USERS[:1], [0.1], noise_stddev=4.0).admitted.all()
        done = move("--json", "--receipt", str(receipt))
        assert done.code == 0, done
        told: dict[Any, Any] = {line["dataset"]: line for line in done.lines}
        assert told["inner"]["users"] == 40
        assert done.lines[-1]["partitions"] == {"before": 3, "after": 5}
        again = move("--json")
        assert (again.code, again.lines[-1]["records_sent"]) == (0, 0), again
        assert move("--check").code == 0
        with pytest.raises(
            RequestRejected, match="by the prefix that `turnstile dataset show` names"
        ):
            shared.client.run("d", "again")
        old = {
            "TURNSTILE_KAFKA": shared.kafka,
            "TURNSTILE_REDIS": shared.redis,
            "TURNSTILE_PREFIX": shared.prefix,
        }
        shown = turnstile("dataset", "show", "inner", "--json", environment=old)
        assert (shown.lines[0]["closed"], shown.lines[0]["moved_to_prefix"]) == (True, new.prefix)
        assert f"charge it with TURNSTILE_PREFIX={new.prefix}" in shown.said
        for command in (("status",), ("dataset", "list")):
            assert f"moved to {new.prefix}" in turnstile(*command, environment=old).out
        with Topics(shared.config) as topics:
            assert topics.prefix_of(bytes.fromhex(shown.lines[0]["moved_to"])) == new.prefix
            assert topics.prefix_of(b"no such log here") is None
        spent = {user: row for user, row in shared.state("d").items() if user in USERS}
        # Afterwards, with a charge that some can pay and some cannot.
        new.settle()
        assert {u: row for u, row in new.state("d").items() if u in USERS} == spent
        decided = new.client.run("inner", "s").charge(
            USERS, np.linspace(0.1, 9.0, 80), noise_stddev=9.0
        )
        assert not decided.admitted[7]
        assert 0 < np.count_nonzero(decided.admitted) < 80
        auditor = new.audit()
        assert sum(len(part["inner"].accounts) for part in auditor.datasets) >= 80
        verified = {
            "TURNSTILE_KAFKA": new.kafka,
            "TURNSTILE_REDIS": new.redis,
            "TURNSTILE_PREFIX": new.prefix,
        }
        done = turnstile("verify", environment=verified)
        assert done.code == 0, done
        done = turnstile("verify", "--against", str(receipt), environment=old)
        assert done.code == 0, done
    shared.audit()
