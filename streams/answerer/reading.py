"""A reader of published answers: each once, and only signed ones if keys are configured.

    for answer in read_answers(Config.load("reader.toml"), dataset="purchases", follow=True):
        print(answer.query, answer.start, answer.value)

After a crash an answer can be in the topic twice, with the same bytes; the first one of each run
and step counts. A different answer to the same step was not released by an answerer. The steps of a
run are answered in order. So a step far below the newest ones was read before, and is skipped.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from streams.answerer.records import VERSION, PrivateAnswer
from streams.config import Config, ConfigurationError
from streams.kafka.answers import ANSWERS
from streams.kafka.authentic import ANSWERERS, WORKERS
from streams.sdk.decisions import UNREADABLE
from streams.sdk.errors import ConflictingDecisions
from streams.sdk.followers import Reading, Since
from streams.sdk.kafka import read_signed

logger = logging.getLogger("turnstile.answers")

_KEPT = 1024
"""Answers remembered per run, to notice different answers to the same steps."""


def read_answers(
    config: Config,
    *,
    dataset: str | None = None,
    run: str | None = None,
    since: Since = "earliest",
    follow: bool = False,
    idle_timeout: float | None = None,
) -> Iterator[PrivateAnswer]:
    """Yield the answers of a service, each once, in the order in which they were published.

    Args:
        config: the address of Kafka, and the keys of answerers (``answer_keys``).
        dataset: of this dataset only.
        run: of runs of this name only.
        since: where to begin.
        follow: wait for more answers after those that exist.
        idle_timeout: stop following after so many seconds without a record; None: never.

    Raises:
        ConfigurationError: the keys of workers are set, but not those of answerers.
        ConflictingDecisions: two different answers to one step.
        ServiceUnavailable: no broker answered, or nothing was ever answered.
    """
    if config.trusted_keys and not config.answer_keys:
        raise ConfigurationError(
            f"{WORKERS.trust_store} is set and {ANSWERERS.trust_store} is not, so answers could be "
            f"forged: set {ANSWERERS.trust_store} to the public keys of the answerers"
        )
    reading = Reading(since, follow, idle_timeout)
    records = read_signed(config, config.topic(ANSWERS), ANSWERERS, reading)
    return distinct_answers((record.value for record in records), dataset, run)


def distinct_answers(
    values: Iterable[bytes], dataset: str | None = None, run: str | None = None
) -> Iterator[PrivateAnswer]:
    """Yield every answer once. Records that are no answers are skipped.

    Args:
        values: of authentic records of the topic answers.
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
            logger.warning("skipped a record that is no answer: %s", error)
            continue
        if answer.v != VERSION:
            logger.warning("skipped an answer of version %d; expected %d", answer.v, VERSION)
            continue
        if dataset not in (None, answer.dataset) or run not in (None, answer.run):
            continue
        steps, content = seen[answer.dataset, answer.run], hashlib.sha256(value).digest()
        if answer.step not in steps:
            if len(steps) == _KEPT:
                first = next(iter(steps))
                if answer.step < first:
                    logger.warning("skipped repeated step %d of run %s", answer.step, answer.run)
                    continue
                del steps[first]
            steps[answer.step] = content
            yield answer
        elif steps[answer.step] != content:
            raise ConflictingDecisions(
                f"step {answer.step} of run {answer.run!r} of dataset {answer.dataset!r} has two "
                "different answers, so another program than its answerer writes to the topic "
                "answers. Use none of them before you have found it. With answer_keys, answers "
                "without a valid signature are skipped"
            )
