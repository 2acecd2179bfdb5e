"""A record of the topic `answers`: JSON, one a window and query, keyed by dataset and run.

It may come twice, after a crash: the same bytes. Whoever counts answers takes the first of each run
and step.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from streams.answerer.kinds import Answered
from streams.answerer.questions import Label, Questions
from streams.answerer.windows import Window
from streams.queries.release import Release

VERSION: Final = 1


class PrivateAnswer(msgspec.Struct, omit_defaults=True):
    """What is published of a window of a query. All of it is public.

    Attributes:
        v: version.
        dataset, run: who was charged, and in whose name.
        step: of the run; no two answers have the same.
        query, kind: as in the file.
        start, end: of the window, UTC; the end is not in it.
        value: of ``labels`` if there are some; null where nothing can be said.
        lower, upper: between which the true one lies, of those who were admitted, each within its
            bounds: all of an answer together with the probability ``confidence``.
        confidence: of that.
        noise_stddev: of each number of the noisy sum that all this was made of.
        worst_case_left: how many more such answers a budget allows to a user who adds as much as
            is allowed to every window: as far as accounting without individual users could go.
        labels: of the values.
        above: whether a threshold was passed.
    """

    v: int
    dataset: str
    run: str
    step: int
    query: str
    kind: str
    start: str
    end: str
    value: float | list[float | None] | None
    lower: float | list[float]
    upper: float | list[float]
    confidence: float
    noise_stddev: float
    worst_case_left: int
    labels: list[Label] | None = None
    above: bool | None = None


def answer_of(
    questions: Questions, window: Window, release: Release, answered: Answered, left: int
) -> PrivateAnswer:
    """What is published of a release."""
    query = questions.queries[window.query]
    return PrivateAnswer(
        v=VERSION,
        dataset=questions.dataset,
        run=questions.run,
        step=release.step,
        query=query.name,
        kind=query.kind,
        start=_iso(window.start),
        end=_iso(window.end),
        value=answered.value,
        lower=answered.lower,
        upper=answered.upper,
        confidence=questions.confidence,
        noise_stddev=release.noise_stddev,
        worst_case_left=left,
        labels=answered.labels,
        above=answered.above,
    )


def _iso(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="seconds" if ms % 1000 == 0 else "milliseconds").replace(
        "+00:00", "Z"
    )
