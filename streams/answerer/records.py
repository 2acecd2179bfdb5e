"""The record of the topic `answers`: JSON, one per window and query, keyed by dataset and run.

After a crash a record can be in the topic twice, with the same bytes. A reader takes the first of
each run and step.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from streams.answerer.kinds import Answered
from streams.answerer.questions import Label, Questions
from streams.answerer.windows import Window, iso
from streams.queries.release import Release

VERSION: Final = 1


class PrivateAnswer(msgspec.Struct, omit_defaults=True):
    """The public answer to a query about one window.

    ``value``, ``lower`` and ``upper`` are an estimate, and ``coverage`` names the users it is
    about. An estimate about other users would be another group of such fields.

    Attributes:
        v: version.
        dataset: the dataset that was charged.
        run: the run that charged it.
        step: of the run; each answer of a run has its own step.
        query, kind: as in the file.
        start, end: of the window, UTC; the end is exclusive.
        value: a number, or one for each of ``labels``; null if the noise allows no estimate.
        lower, upper: the interval around the noise. It contains the true value of the users in
            ``coverage``, each within its bounds; all intervals of an answer hold together with the
            probability ``confidence``.
        coverage: "admitted": only users whose budget paid for this window are counted. The
            interval does not cover users who were left out.
        confidence: see ``lower``.
        noise_stddev: standard deviation of the noise in each number of the noisy sum from which
            the answer was computed.
        worst_case_left: how many more such answers a budget allows to a user who adds the maximum
            to every window: the limit of accounting without individual users.
        exhaustible_since: the start of the query's first window in which a user could have been
            exhausted, counting the charges of this run alone. From that window on a user can be
            missing from the answers. Null if that window has not come yet. It follows from the
            file and the policies, not from data about users.
        labels: of the values.
        above: whether the noisy value is above a threshold.
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
    coverage: Literal["admitted"]
    confidence: float
    noise_stddev: float
    worst_case_left: int
    exhaustible_since: str | None
    labels: list[Label] | None = None
    above: bool | None = None


def answer_of(
    questions: Questions,
    window: Window,
    release: Release,
    answered: Answered,
    *,
    worst_case_left: int,
    exhaustible_since: Window | None,
) -> PrivateAnswer:
    """Return the record of a release."""
    query = questions.queries[window.query]
    return PrivateAnswer(
        v=VERSION,
        dataset=questions.dataset,
        run=questions.run,
        step=release.step,
        query=query.name,
        kind=query.kind,
        start=iso(window.start),
        end=iso(window.end),
        value=answered.value,
        lower=answered.lower,
        upper=answered.upper,
        coverage="admitted",
        confidence=questions.confidence,
        noise_stddev=release.noise_stddev,
        worst_case_left=worst_case_left,
        exhaustible_since=None if exhaustible_since is None else iso(exhaustible_since.start),
        labels=answered.labels,
        above=answered.above,
    )
