"""Reading the answers that were published: each once, and where there are keys, signed ones alone.

    for answer in read_answers(Config.load("reader.toml"), dataset="purchases", follow=True):
        print(answer.query, answer.start, answer.value)

An answer can be in the topic twice after a crash, with the same bytes: the first of each run and
step counts. Another answer to the same step is one that no answerer has released. Steps of a run
are answered in their order: what comes behind many later ones was read before, and is passed over.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from streams.answerer.records import VERSION, PrivateAnswer
from streams.config import Config, ConfigurationError
from streams.sdk.errors import ConflictingDecisions
from streams.sdk.followers import UNREADABLE, Reading, Since
from streams.sdk.kafka_connection import read_signed
from streams.topics.answers import ANSWERS
from streams.topics.authentic import ANSWERERS, WORKERS

logger = logging.getLogger("turnstile.answers")

_KEPT = 1024
"""Answers of a run by which others to the same steps are noticed."""


def read_answers(
    config: Config,
    *,
    dataset: str | None = None,
    run: str | None = None,
    since: Since = "earliest",
    follow: bool = False,
    idle_timeout: float | None = None,
) -> Iterator[PrivateAnswer]:
    """The answers of a service, each once, in the order in which they were published.

    Args:
        config: where Kafka is, and whose answers count (``answer_keys``).
        dataset: of this dataset only.
        run: of runs of this name only.
        since: where to begin.
        follow: wait for more after what there is.
        idle_timeout: following ends when nothing came for so many seconds; None is never.

    Raises:
        ConfigurationError: it says whose decisions count, and not whose answers.
        ConflictingDecisions: two different answers to one step.
        ServiceUnavailable: no broker, or nothing was ever answered.
    """
    if config.trusted_keys and not config.answer_keys:
        raise ConfigurationError(
            f"{WORKERS.ring} is set and {ANSWERERS.ring} is not: anybody could have written the "
            f"answers. Set {ANSWERERS.ring} to the public keys of the answerers"
        )
    reading = Reading(since, follow, idle_timeout)
    records = read_signed(config, config.topic(ANSWERS), ANSWERERS, reading)
    return distinct_answers((record.value for record in records), dataset, run)


def distinct_answers(
    values: Iterable[bytes], dataset: str | None = None, run: str | None = None
) -> Iterator[PrivateAnswer]:
    """Every answer once. What is none is passed over.

    Args:
        values: of records of the topic answers that are believed.
        dataset: of this dataset only.
        run: of runs of this name only.

    Raises:
        ConflictingDecisions: two different answers to one of the last 1,024 steps of a run.
    """
    decoder = msgspec.json.Decoder(PrivateAnswer)
    seen: defaultdict[tuple[str, str], dict[int, bytes]] = defaultdict(dict)
    for value in values:
        try:
            answer = decoder.decode(value)
        except UNREADABLE as error:
            logger.warning("passed over a record that is no answer: %s", error)
            continue
        if answer.v != VERSION:
            logger.warning("passed over an answer of version %d: read %d", answer.v, VERSION)
            continue
        if dataset not in (None, answer.dataset) or run not in (None, answer.run):
            continue
        steps, content = seen[answer.dataset, answer.run], hashlib.sha256(value).digest()
        if answer.step not in steps:
            if len(steps) == _KEPT:
                first = next(iter(steps))
                if answer.step < first:
                    logger.warning("passed over step %d of run %s, again", answer.step, answer.run)
                    continue
                del steps[first]
            steps[answer.step] = content
            yield answer
        elif steps[answer.step] != content:
            raise ConflictingDecisions(
                f"step {answer.step} of run {answer.run!r} of dataset {answer.dataset!r} has two "
                "different answers, so somebody else than its answerer writes to the topic "
                "answers. Find out who before anything is made of them; with answer_keys those "
                "that no answerer signed are passed over"
            )
