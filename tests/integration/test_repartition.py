"""A repartition continues a log, although the command is killed three times."""

from __future__ import annotations

import numpy as np
import pytest

from streams import DatasetIsClosed, RequestRejected, Turnstile
from streams.cli.printing import Exit
from streams.local import LocalStack
from streams.records import Reason
from streams.replay.service import KafkaLogs
from tests.integration.command import Done, turnstile
from tests.integration.service import IMPATIENT_WORKER, Service, ServiceFactory, end_at_once

pytestmark = pytest.mark.fault

USERS = np.arange(60)
ERASED = 7


class Killed(BaseException):
    """Raised to end the command; none of its code runs afterwards."""


def command(service: Service, *words: str) -> Done:
    where = {
        "TURNSTILE_KAFKA": service.kafka,
        "TURNSTILE_REDIS": service.redis,
        "TURNSTILE_PREFIX": service.prefix,
    }
    return turnstile(*words, "--json", environment=where)


def kill_at(patch: pytest.MonkeyPatch, method: str, call: int) -> None:
    """Let a method of the command's port run, and end the command after it."""
    real, calls = getattr(KafkaLogs, method), []

    def killed(*arguments: object) -> None:
        real(*arguments)
        calls.append(method)
        if len(calls) == call:
            raise Killed

    patch.setattr(KafkaLogs, method, killed)


def charge(client: Turnstile, run: str, steps: int) -> np.ndarray:
    """Charge steps that cost each user 0.5; return how often each user was admitted."""
    opened = client.run("d", run)
    admitted = np.zeros(len(USERS), dtype=int)
    for _ in range(steps):
        admitted += opened.charge(USERS, np.ones(len(USERS)), noise_stddev=1.0).admitted
    opened.close()
    return admitted


def test_users_keep_their_remaining_budgets(start_service: ServiceFactory) -> None:
    with start_service(partitions=4) as old:
        old.client.create_dataset("d", measure="zcdp", budget=2.0)
        old.client.create_dataset("ended", measure="zcdp", budget=1.0)
        old.client.close_dataset("ended")
        before = charge(old.client, "first", 3)
        old.client.erase(ERASED, dataset="d")
        old.settle()
        prefix = f"next-{old.prefix}"
        words = ("repartition", "--to", prefix, "--into", "6")
        assert command(old, *words, "--dry-run").code == Exit.OK
        for method, call in (("begin", 2), ("retire", 2), ("install", 3)):
            with pytest.MonkeyPatch.context() as patch:
                kill_at(patch, method, call)
                with pytest.raises(Killed):
                    command(old, *words)
        done = command(old, *words)
        assert done.code == Exit.OK
        assert done.lines[-1]["done"] is True
        with pytest.raises(RequestRejected) as refused:
            old.client.run("d", "late")
        assert refused.value.reason == Reason.LOG_RETIRED
        old.audit()
        with LocalStack(
            kafka=old.kafka,
            redis=old.redis,
            prefix=prefix,
            workers=1,
            partitions=6,
            worker_command=IMPATIENT_WORKER,
        ) as stack:
            new = Service(stack)
            try:
                after = charge(new.client, "second", 3)
                expected = np.where(USERS == ERASED, 3, 4)  # steps of 0.5: exactly the budget
                assert (before + after).tolist() == expected.tolist()
                with pytest.raises(DatasetIsClosed):
                    new.client.run("ended", "r")
                new.settle()
                verified = command(new, "verify", "--origin", old.prefix)
                assert verified.code == Exit.OK, verified.out
                assert command(new, "verify").code == Exit.OK
                assert command(old, "verify").code == Exit.OK
            finally:
                new.close()
                end_at_once(stack)
