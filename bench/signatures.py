"""What signing a record takes, and checking that: alone, and among those sent with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from bench.report import section
from streams.records.signatures import (
    TOGETHER,
    Content,
    SignedPlace,
    Signer,
    TrustStore,
    new_keys,
)

_PLACE = SignedPlace(bytes(16), "turnstile.halts", 0)
_RECORDS = 4096
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


def _micros(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e6 / _RECORDS


def lines(results: list[Signing]) -> list[str]:
    """Return a table for the report."""
    return section(
        "Signatures",
        "Microseconds of CPU time for a record of 600 bytes.",
        ["signed at once", "signing", "checking"],
        [[r.together, f"{r.sign:.0f}", f"{r.check:.0f}"] for r in results],
    )
