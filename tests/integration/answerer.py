"""An answerer that is killed (SIGKILL) or stopped (SIGSTOP) at a given point of a step.

opened       the run is open, the input has not been read again
closing      the entry that a window closes is written
charged      one partition's part of the charge is in Kafka
drawn        the charge is decided, and the noise is drawn
sleep        as drawn, but the process is stopped until a test continues it
answered     the entry with the answer is written, and nothing is published
published    the answer is published
forgotten    some of the earlier entries are deleted
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from streams.answerer.journal import JournalEntry
from streams.answerer.kafka_journal import KafkaJournal
from streams.answerer.window_answering import Answering
from streams.cli.main import main
from streams.queries.continual_monitoring import QueryAnswerer
from streams.sdk.kafka_connection import KafkaConnection


def doom(point: str, step: int) -> None:
    """Kill this process at the given point."""
    at: dict[str, int] = {"step": -1}

    def end_if(where: str, now: int, how: int = signal.SIGKILL) -> None:
        if point == where and now == step:
            os.kill(os.getpid(), how)

    def behind(kind: type, name: str, then: Any) -> None:
        original = getattr(kind, name)

        def wrapped(self: Any, *arguments: Any, **options: Any) -> Any:
            done = original(self, *arguments, **options)
            then(self, *arguments)
            return done

        setattr(kind, name, wrapped)

    def entered(journal: KafkaJournal, entry: JournalEntry) -> None:
        at["step"] = entry.step if entry.kind != "begin" else -1
        end_if(entry.kind, entry.step)

    behind(KafkaJournal, "append", entered)

    forget = KafkaJournal.delete

    def forget_some(self: KafkaJournal, entries: Sequence[JournalEntry]) -> None:
        if point == "forgotten" and entries and at["step"] == step:
            forget(self, entries[1:])
            self._producer.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        forget(self, entries)

    KafkaJournal.delete = forget_some
    behind(KafkaJournal, "publish", lambda journal, answer, run: end_if("published", at["step"]))
    behind(QueryAnswerer, "answer", lambda answerer, users, rows: end_if("drawn", at["step"]))
    behind(
        QueryAnswerer,
        "answer",
        lambda answerer, users, rows: end_if("sleep", at["step"], signal.SIGSTOP),
    )

    def opened(answering: Answering, *_: Any) -> None:
        end_if("opened", answering.state.calendar.step)

    behind(Answering, "__init__", opened)
    publish = KafkaConnection._publish

    def publish_one(self: Any, requests: Any, waiting: Any) -> None:
        if point == "charged" and at["step"] == step:
            publish(self, dict(list(requests.items())[:1]), waiting)
            self._open().flush()
            os.kill(os.getpid(), signal.SIGKILL)
        publish(self, requests, waiting)

    KafkaConnection._publish = publish_one


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[0] != "answer":
        doom(arguments[0], int(arguments[1]))
        arguments = arguments[2:]
    sys.exit(main(arguments))
