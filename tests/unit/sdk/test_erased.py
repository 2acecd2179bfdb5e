"""What is heard of users who were erased, and what no worker can have said of them."""

from msgspec.structs import replace

from streams import Turnstile
from streams.ledger.outputs import Channel
from streams.records import ERASED, TOO_SOON, Decision, decode_answer
from streams.sdk.decisions import DecisionArrays
from streams.sdk.followers import Reading
from streams.sdk.memory_connection import MemoryConnection
from tests.unit.sdk.partitions import fits


def heard() -> Decision:
    connection = MemoryConnection(1, 5.0)
    with Turnstile(connection=connection) as turnstile:
        turnstile.create_dataset("d", measure="zcdp", budget=1.0)
        run = turnstile.run("d", "r", min_separation=3)
        run.charge([1, 2, 3], [1.0, 0.0, 1.0], noise_stddev=4.0)
        turnstile.erase(1)
        run.charge([1, 2, 3], [1.0, 1.0, 1.0], noise_stddev=4.0)
        records = connection.read(Channel.HALTS, Reading("earliest", False))
        answers = [decode_answer(record.value) for record in records]
    return next(a for a in answers if isinstance(a, Decision) and a.reasons)


def test_erased_and_too_soon_are_distinct_reasons():
    decision = heard()
    assert fits(decision)
    assert DecisionArrays.of(decision).reasons.tolist() == [ERASED, 0, TOO_SOON]


def test_decision_with_inconsistent_arrays_is_invalid():
    decision = heard()
    for forged in (
        replace(decision, reasons=b""),
        replace(decision, reasons=decision.reasons + b"\0"),
        replace(decision, reasons=bytes([1, TOO_SOON])),
        replace(decision, admitted=b"\7"),
    ):
        assert not fits(forged)
