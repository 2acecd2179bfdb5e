"""A Faust app that takes its settings from here alone, and its run.

Whatever Faust would read from the environment, keep on disk, serve, or declare is switched off: an
app reads one topic, and whoever owns its partitions says from where on.
"""

from __future__ import annotations

import asyncio
from typing import Any

from faust.auth import SASLCredentials, SSLCredentials
from faust.worker import Worker

from streams.config import Config
from streams.topics.security import security
from streams.worker.kafka.transport import (
    NoTables,
    TurnstileApp,
    read_batches_within_limits,
)


def new_app(config: Config, name: str, topic: str, at_once: int, **settings: Any) -> TurnstileApp:
    """An app that reads a topic.

    Args:
        config: where Kafka is.
        name: its consumer group.
        topic: what it reads.
        at_once: how many records are taken at most of what was fetched.
        settings: more of Faust's.

    Raises:
        ConfigurationError: certificates that cannot be used.
    """
    read_batches_within_limits()
    app = TurnstileApp(
        name,
        broker=";".join(f"kafka://{address}" for address in config.kafka.split(",")),
        broker_credentials=_credentials(config),
        store="memory://",
        TableManager=NoTables,
        web_enabled=False,
        topic_disable_leader=True,
        table_standby_replicas=0,  # else Faust's own assignor leaves some of many workers idle
        topic_allow_declare=False,
        key_serializer="raw",
        value_serializer="raw",
        consumer_auto_offset_reset="none",  # an offset that the log does not have is no start
        broker_max_poll_records=at_once,
        **settings,
    )
    app.norms_topic = topic
    return app


def _credentials(config: Config) -> SASLCredentials | SSLCredentials | None:
    """Return who the app is to Kafka, in Faust's names for it.

    Raises:
        ConfigurationError: certificates that cannot be used.
    """
    settings = security(config)
    context = settings.get("ssl_context")
    if "sasl_mechanism" in settings:
        return SASLCredentials(
            username=config.kafka_username,
            password=config.kafka_password,
            mechanism=config.kafka_mechanism,
            ssl_context=context,
        )
    return None if context is None else SSLCredentials(context)


def run_app(app: TurnstileApp, log_level: str) -> None:
    """Run an app until it is told to stop; logging is as the caller has set it up."""
    worker = _Worker(app, loglevel=log_level, quiet=True, override_logging=False)
    worker.spinner = None  # it writes control characters between the lines
    worker.execute_from_commandline()


class _Worker(Worker):
    """Faust's, which sleeps for a second when all that it ran has ended."""

    async def _sentinel_task(self) -> None:
        await asyncio.sleep(0)
