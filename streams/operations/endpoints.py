"""What workers answer over HTTP, at the addresses of their setting ``health``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from prometheus_client.parser import text_string_to_metric_families

_WITHIN = 2.0  # seconds
_MOST_BYTES = 4 * 1024 * 1024
_OPENER = build_opener(ProxyHandler({}))  # a worker is not behind the proxy for the web


@dataclass(frozen=True)
class WorkerSeen:
    """One worker, as it answers at its address."""

    address: str
    problem: str | None  # why it does not answer, or what of it is not healthy
    release: str | None = None
    partitions: list[int] = field(default_factory=list)
    records: float = 0.0  # applied since it was started
    rejects: dict[str, float] = field(default_factory=dict)  # by reason, since it was started
    ahead: float | None = None  # seconds that its clock is ahead of the one here, to a second


def ask_workers(addresses: Sequence[str]) -> list[WorkerSeen]:
    """Ask each of them; one that does not answer is one with a problem."""
    return [_ask(address) for address in addresses]


def _ask(address: str) -> WorkerSeen:
    try:
        healthy, said, date = _get(f"http://{address}/healthz")
        told = json.loads(said)
        _, metrics, _ = _get(f"http://{address}/metrics")
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        return WorkerSeen(address, f"does not answer: {reason}")
    samples = list(_samples(metrics))
    problems = told.get("problems") or {}
    named = "; ".join(f"partition {number}: {what}" for number, what in problems.items())
    return WorkerSeen(
        address,
        None if healthy else named or "it says that it is not healthy",
        release=next(
            (labels["version"] for name, labels, _ in samples if name == "turnstile_build_info"),
            None,
        ),
        partitions=list(told.get("partitions") or []),
        records=sum(v for name, _, v in samples if name == "turnstile_records_total"),
        rejects={
            labels.get("reason", "unknown"): value
            for name, labels, value in samples
            if name == "turnstile_rejects_total"
        },
        ahead=date,
    )


def _get(url: str) -> tuple[bool, str, float | None]:
    """(whether it was 200, the body, how far the clock there is ahead)."""
    try:
        answer = _OPENER.open(url, timeout=_WITHIN)
    except HTTPError as error:
        answer = error  # 503 says what is wrong
    with answer:
        said = answer.read(_MOST_BYTES).decode(errors="replace")
        date = answer.headers.get("Date")
        ahead = None if date is None else parsedate_to_datetime(date).timestamp() - time.time()
        return answer.status == 200, said, ahead


def _samples(exposition: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
