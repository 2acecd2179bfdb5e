"""What signing a record takes, and checking that: alone, and among those sent with it; and what a
request takes in a dataset with an access list.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from streams.ledger.ledger import Ledger
from streams.records import Charge, CreateDataset, OpenRun, Policy, encode
from streams.records.digests import NO_TOPIC
from streams.records.signatures import (
    TOGETHER,
    Content,
    RequestSigner,
    SignedPlace,
    Signer,
    TrustStore,
    new_keys,
)
from tests.keys import allowing, private_key

_PLACE = SignedPlace(bytes(16), "turnstile.halts", 0)
_RECORDS = 4096
_CHARGES = 500
_VALUE = bytes(600)  # as large as a decision about some hundred users


@dataclass
class Signing:
    """Microseconds of a processor for one record, of so many that are signed at once."""

    together: int
    sign: float
    check: float


def measure(rounds: int) -> list[Signing]:
    """Records that come alone, and as many as are signed at once."""
    return [_measure(together, rounds) for together in (1, TOGETHER)]


def _measure(together: int, rounds: int) -> Signing:
    private, public = new_keys()
    signer = Signer(private)
    contents = [Content(None, number.to_bytes(8, "big") + _VALUE) for number in range(_RECORDS)]
    groups = [contents[at : at + together] for at in range(0, _RECORDS, together)]
    signed = [
        (c, s) for group in groups for c, s in zip(group, signer.sign(_PLACE, group), strict=True)
    ]
    signs, checks = [], []
    for _ in range(rounds):
        signs.append(_micros(lambda: [signer.sign(_PLACE, group) for group in groups]))
        trust_store = TrustStore(public)  # it remembers roots that it has checked
        checks.append(
            _micros(
                lambda trust_store=trust_store: [trust_store.check(_PLACE, c, s) for c, s in signed]
            )
        )
    return Signing(together, median(signs), median(checks))


@dataclass
class Asking:
    """Microseconds of a processor to apply one charge of some users."""

    users: int
    unsigned: float
    signed: float


def measure_requests(rounds: int) -> list[Asking]:
    """Charges of a few users and of many, of an open dataset and of a listed one."""
    return [
        Asking(users, *(median(_apply(users, named) for _ in range(rounds)) for named in (0, 1)))
        for users in (10, 4096)
    ]


def _apply(users: int, named: int) -> float:
    ledger = Ledger(0, 1)
    allow = {"allow": allowing(alice="charge manage")} if named else {}
    units = [2**60]
    policy = Policy(
        dataset="d", partitions=1, measure="zcdp", budget=units, odometer_step=units, **allow
    )
    opening = OpenRun(dataset="d", run="r", attempt=1, request="t")
    ids = b"".join(user.to_bytes(8, "little") for user in range(users))
    norms = bytes(6) + b"\xf0\x3f"
    charges = [
        Charge(
            dataset="d",
            run="r",
            attempt=1,
            step=step,
            users=ids,
            norms=norms * users,
            scale=9.0,
        )
        for step in range(_CHARGES)
    ]
    log = {"log": NO_TOPIC} if named else {}
    before = [CreateDataset(request="t", policy=policy, **log), opening]
    records = [encode(record) for record in (*before, *charges)]
    if named:
        signer = RequestSigner(private_key("alice"))
        records[1:] = [signer.sign(NO_TOPIC, 0, each) for each in records[1:]]
    began = 0.0
    for offset, record in enumerate(records):
        if offset == len(records) - _CHARGES:
            began = time.process_time()
        ledger.apply(offset, record)
        ledger.state.take_delta()
    assert ledger.state.runs["d", "r"].step == _CHARGES - 1
    return (time.process_time() - began) * 1e6 / _CHARGES


def _micros(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e6 / _RECORDS


def lines(results: list[Signing], requests: list[Asking]) -> list[str]:
    """Tables for the report."""
    return [
        "## Signatures",
        "",
        "Microseconds of a processor for a record of 600 bytes.",
        "",
        "| signed at once | signing | checking |",
        "|---:|---:|---:|",
        *(f"| {r.together} | {r.sign:.0f} | {r.check:.0f} |" for r in results),
        "",
        "Microseconds of a processor to apply a charge by norms.",
        "",
        "| users | open dataset | listed dataset |",
        "|---:|---:|---:|",
        *(f"| {r.users} | {r.unsigned:.0f} | {r.signed:.0f} |" for r in requests),
        "",
    ]
