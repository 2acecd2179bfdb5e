"""The answers of workers and answerers over HTTP, at the addresses of their setting ``health``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, TypeAlias
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

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
    return [_answerer(address, *_asked(address, "")) for address in addresses]


def ask_workers(addresses: Sequence[str]) -> list[WorkerSeen]:
    """Ask each of them; one that does not answer has a problem."""
    return [_worker(address, *_asked(address, "partition {partition}: ")) for address in addresses]


Sample: TypeAlias = tuple[str, dict[str, str], float]


def _answerer(
    address: str, problem: str | None, _: list[int], samples: list[Sample]
) -> AnswererSeen:
    found = [
        (name.removeprefix(_ANSWERER), labels, value)
        for name, labels, value in samples
        if name.startswith(_ANSWERER)
    ]
    if samples and not found:
        return AnswererSeen(address, "is not an answerer: it lacks an answerer's metrics")
    sources = (
        labels | {"keeps": value} for name, labels, value in found if name == "input_seconds"
    )
    source: dict[str, Any] = next(sources, {})
    return AnswererSeen(
        address,
        problem,
        ready=any(name == "ready" and value for name, _, value in found),
        lag=sum(value for name, _, value in found if name == "lag"),
        closes=next((value for name, _, value in found if name == "window_closes_seconds"), None),
        topic=source.get("topic", ""),
        clock=source.get("clock", ""),
        keeps=source.get("keeps", 0.0),
    )


def _worker(
    address: str, problem: str | None, partitions: list[int], samples: list[Sample]
) -> WorkerSeen:
    release, records = None, 0.0
    for name, labels, value in samples:
        if name == "turnstile_build_info":
            release = labels["version"]
        elif name == "turnstile_records_total":
            records += value
    return WorkerSeen(address, problem, release, partitions, records)


def _asked(address: str, place: str) -> tuple[str | None, list[int], list[Sample]]:
    """Return why a process is not healthy, its partitions, and its metrics.

    Args:
        address: host:port of the process.
        place: what precedes the problem of a ``{partition}``.
    """
    from prometheus_client.parser import text_string_to_metric_families

    try:
        healthy, body = _get(f"http://{address}/healthz")
        health = json.loads(body)
        named = dict.fromkeys(place.format(**one) + one["problem"] for one in health["problems"])
        _, metrics = _get(f"http://{address}/metrics")
        samples = [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(metrics)
            for sample in family.samples
        ]
    except (OSError, HTTPException, ValueError) as error:
        return f"does not answer: {getattr(error, 'reason', error)}", [], []
    except (KeyError, TypeError) as error:
        return f"does not answer: not an answer of /healthz: {error!r}", [], []
    problem = None if healthy else "; ".join(named) or "it reports that it is not healthy"
    return problem, list(health.get("partitions") or []), samples


def _get(url: str) -> tuple[bool, str]:
    """Return whether the status is 200, and the body."""
    try:
        answer = _OPENER.open(url, timeout=_WITHIN)
    except HTTPError as error:
        answer = error  # the body of a 503 has the problems
    with answer:
        return answer.status == 200, answer.read(_MOST_BYTES).decode(errors="replace")
