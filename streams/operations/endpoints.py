"""The answers of workers and answerers over HTTP, at the addresses of their setting ``health``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from prometheus_client.parser import text_string_to_metric_families

_WITHIN = 2.0  # seconds
_MOST_BYTES = 4 * 1024 * 1024
_OPENER = build_opener(ProxyHandler({}))  # the servers are not behind the web proxy
_ANSWERER = "turnstile_answerer_"


@dataclass(frozen=True)
class WorkerSeen:
    """The answer of one worker."""

    address: str
    problem: str | None  # why it does not answer, or is not healthy
    release: str | None = None
    partitions: list[int] = field(default_factory=list)
    records: float = 0.0  # applied since it was started
    rejects: dict[str, float] = field(default_factory=dict)  # by reason, since it was started
    ahead: float | None = None  # the seconds by which its clock is ahead of this one, to a second


@dataclass(frozen=True)
class AnswererSeen:
    """The answer of one answerer."""

    address: str
    problem: str | None  # why it does not answer, or is not healthy
    ready: bool = False  # it holds the run
    lag: float = 0.0  # events that it has not read yet
    closes: float | None = None  # when its next window closes, in seconds since 1970
    topic: str = ""  # the topic of its input
    clock: str = ""  # the clock that closes windows: "arrival" or "events"
    keeps: float = 0.0  # the seconds for which the input must keep events


def ask_answerers(addresses: Sequence[str]) -> list[AnswererSeen]:
    """Ask each of them; one that does not answer has a problem."""
    return [_ask_answerer(address) for address in addresses]


def _ask_answerer(address: str) -> AnswererSeen:
    try:
        healthy, body, _ = _get(f"http://{address}/healthz")
        problems = _problems(json.loads(body))
        _, metrics, _ = _get(f"http://{address}/metrics")
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        return AnswererSeen(address, f"does not answer: {reason}")
    found = [
        (name.removeprefix(_ANSWERER), labels, value)
        for name, labels, value in _samples(metrics)
        if name.startswith(_ANSWERER)
    ]
    if not found:
        return AnswererSeen(address, "is not an answerer: it lacks an answerer's metrics")
    named = "; ".join(dict.fromkeys(text for _, text in problems))
    source, keeps = next(
        ((labels, value) for name, labels, value in found if name == "input_seconds"),
        ({}, 0.0),
    )
    return AnswererSeen(
        address,
        None if healthy else named or "it reports that it is not healthy",
        ready=any(name == "ready" and value for name, _, value in found),
        lag=sum(value for name, _, value in found if name == "lag"),
        closes=next((value for name, _, value in found if name == "window_closes_seconds"), None),
        topic=source.get("topic", ""),
        clock=source.get("clock", ""),
        keeps=keeps,
    )


def ask_workers(addresses: Sequence[str]) -> list[WorkerSeen]:
    """Ask each of them; one that does not answer has a problem."""
    return [_ask(address) for address in addresses]


def _ask(address: str) -> WorkerSeen:
    try:
        healthy, body, date = _get(f"http://{address}/healthz")
        health = json.loads(body)
        _, metrics, _ = _get(f"http://{address}/metrics")
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        return WorkerSeen(address, f"does not answer: {reason}")
    samples = list(_samples(metrics))
    named = "; ".join(f"partition {number}: {text}" for number, text in _problems(health))
    return WorkerSeen(
        address,
        None if healthy else named or "it reports that it is not healthy",
        release=next(
            (labels["version"] for name, labels, _ in samples if name == "turnstile_build_info"),
            None,
        ),
        partitions=list(health.get("partitions") or []),
        records=sum(v for name, _, v in samples if name == "turnstile_records_total"),
        rejects={
            labels.get("reason", "unknown"): value
            for name, labels, value in samples
            if name == "turnstile_rejects_total"
        },
        ahead=date,
    )


def _problems(health: Any) -> list[tuple[Any, str]]:
    """Return the partitions that a process does not decide, each with the text for people.

    Raises:
        ValueError: it is not what /healthz answers.
    """
    try:
        return [(one["partition"], str(one["problem"])) for one in health["problems"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an answer of /healthz: {error!r}") from error


def _get(url: str) -> tuple[bool, str, float | None]:
    """Return whether the status is 200, the body, and by how much the clock there is ahead."""
    try:
        answer = _OPENER.open(url, timeout=_WITHIN)
    except HTTPError as error:
        answer = error  # the body of a 503 has the problems
    with answer:
        body = answer.read(_MOST_BYTES).decode(errors="replace")
        date = answer.headers.get("Date")
        ahead = None if date is None else parsedate_to_datetime(date).timestamp() - time.time()
        return answer.status == 200, body, ahead


def _samples(exposition: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
