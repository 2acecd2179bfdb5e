"""A trainer with a trust store accepts decisions of the workers only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from msgspec.structs import replace

from streams import ConflictingDecisions, DecisionTimeout, Turnstile
from streams.kafka.authentic import RecordSigner, RecordVerifier
from streams.ledger.outputs import Channel, Output
from streams.records import (
    Decision,
    Reason,
    Rejected,
    RosterDecision,
    decode_answer,
    decode_request,
    encode,
)
from streams.records.packing import pack_bits
from streams.records.signatures import Content, Signer, TrustStore, new_keys
from streams.sdk.connection import PendingRequest
from streams.sdk.followers import Reading
from streams.sdk.memory_connection import MemoryConnection

PRIVATE, PUBLIC = new_keys()
LOG = b"log of 16 bytes."
USERS = list(range(12))
Forge = Callable[[int, bytes, Output], Output | None]


class SignedConnection(MemoryConnection):
    """The service in memory, over topics to which somebody else writes, too.

    Attributes:
        forge: makes of a request and its answer what somebody else writes before that answer.
        silent: whether the workers' own answers are lost.
    """

    def __init__(self, trust_store: TrustStore) -> None:
        super().__init__(2, timeout=0.05)
        self.record_signer = RecordSigner(Signer(PRIVATE), LOG)
        self.verifier = RecordVerifier(trust_store, LOG)
        self.forge: Forge | None = None
        self.silent = False
        self._requests: dict[int, bytes] = {}

    def _publish(self, requests: Mapping[int, bytes], waiting: PendingRequest) -> None:
        self._requests = dict(requests)
        super()._publish(requests, waiting)

    def _answer(self, partition: int, outputs: list[Output]) -> None:
        for output in outputs:
            if self.forge and (forged := self.forge(partition, self._requests[partition], output)):
                self.arrive(partition, forged, [])
            if not self.silent and output.channel is not Channel.ODOMETER:
                content = Content(output.key, output.value)
                (headers,) = self.record_signer.headers(output.channel.value, partition, [content])
                self.arrive(partition, output, headers)

    def arrive(self, partition: int, output: Output, headers: list[tuple[str, bytes]]) -> None:
        content = output.key, output.value
        if self.verifier.admits(output.channel.value, partition, content, headers):
            self._deliver(output.channel, partition, output.value)

    def _why_silent(self) -> str:
        return self.verifier.why_silent()


def admission(partition: int, request: bytes, answer: Output) -> Output | None:
    """A decision that admits everybody."""
    decision = decode_answer(answer.value) if answer.channel is Channel.HALTS else None
    if isinstance(decision, RosterDecision):
        forged = replace(decision, halted=b"")
        return answer if forged == decision else Output(answer.channel, b"k", encode(forged))
    if not isinstance(decision, Decision):
        return None
    everybody = pack_bits(np.ones(decision.users, dtype=bool))
    forged_decision = replace(
        decision, admitted=everybody, halted=b"", reasons=b"", exhausted=bytes(1)
    )
    return Output(answer.channel, b"k", encode(forged_decision))


def refusal(partition: int, request: bytes, answer: Output) -> Output | None:
    """A refusal of exactly what was asked."""
    sent = decode_request(request)
    rejected = Rejected(
        partition=partition,
        offset=0,
        reason=Reason.OLDER_ATTEMPT,
        detail="forged",
        record=request,
        dataset=getattr(sent, "dataset", None),
        run=getattr(sent, "run", None),
        attempt=getattr(sent, "attempt", None),
        step=getattr(sent, "step", None),
        request=getattr(sent, "request", None),
    )
    return Output(Channel.REJECTS, b"k", encode(rejected))


def exhausted(connection: SignedConnection) -> Turnstile:
    """A service in which the users of dataset d have spent everything in step 0 of run r."""
    turnstile = Turnstile(connection=connection)
    turnstile.create_dataset("d", measure="zcdp", budget=0.5)
    assert turnstile.run("d", "r").charge(USERS, np.ones(12), noise_stddev=1.0).exhausted.all()
    return turnstile


@pytest.mark.parametrize("forge", [admission, refusal])
def test_forged_record_is_ignored(forge: Forge) -> None:
    connection = SignedConnection(TrustStore(PUBLIC))
    turnstile = exhausted(connection)
    connection.forge = forge
    run = turnstile.run("d", "r")
    for _ in range(3):
        assert run.charge(USERS, np.ones(12), noise_stddev=1.0).halted.all()


def test_forged_decision_alone_is_a_timeout() -> None:
    connection = SignedConnection(TrustStore(PUBLIC))
    turnstile = exhausted(connection)
    run = turnstile.run("d", "r")
    connection.forge, connection.silent = admission, True
    with pytest.raises(DecisionTimeout):
        run.charge(USERS, np.ones(12), noise_stddev=1.0)
    # The half-published step is sent again, and the stored decision comes.
    connection.silent = False
    assert run.charge(USERS, np.ones(12), noise_stddev=1.0).halted.all()


def test_untrusted_workers_are_a_timeout() -> None:
    connection = SignedConnection(TrustStore(new_keys()[1]))
    with pytest.raises(DecisionTimeout):
        Turnstile(connection=connection).create_dataset("d", measure="zcdp", budget=1.0)


def test_signed_decisions_can_conflict() -> None:
    """A worker whose key was stolen is noticed as without signatures."""
    connection = SignedConnection(TrustStore(PUBLIC))
    turnstile = exhausted(connection)
    run = turnstile.run("d", "r")
    run.charge(USERS, np.ones(12), noise_stddev=1.0)
    *_, last = connection.read(Channel.HALTS, Reading("earliest", False))
    forged = admission(last.partition, b"", Output(Channel.HALTS, b"k", last.value))
    assert forged is not None
    content = Content(forged.key, forged.value)
    (headers,) = connection.record_signer.headers("halts", last.partition, [content])
    connection.arrive(last.partition, forged, headers)
    with pytest.raises(ConflictingDecisions):
        run.charge(USERS, np.ones(12), noise_stddev=1.0)
