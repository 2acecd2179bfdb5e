"""One command: its settings, its exit code, and what becomes of errors."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Sequence

from streams.answerer.journal import JournalUnavailable
from streams.answerer.marks import Superseded
from streams.answerer.questions import UnusableQueries
from streams.cli.arguments import parse
from streams.cli.extras import MissingExtra
from streams.cli.options import SETTINGS
from streams.cli.output import Exit, UnusableInput, close_unwritable_outputs, note
from streams.config import Config, ConfigurationError
from streams.demo.errors import DemoError
from streams.kafka.seen import TopicsUnavailable
from streams.ledger.partition_error import PartitionError
from streams.local.errors import LocalStackError
from streams.operations.errors import Unavailable
from streams.replay.archive import BrokenLog, UnreadableService
from streams.replay.receipts import UnusableReceipt
from streams.sdk.errors import (
    ConflictingDecisions,
    DecisionTimeout,
    InvalidRequest,
    RequestRejected,
    ServiceUnavailable,
    TurnstileError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        return _run(arguments)
    finally:
        close_unwritable_outputs()


def _run(arguments: Sequence[str] | None) -> int:
    options = parse(arguments)
    handler: Callable[[argparse.Namespace, Config], int] = options.handler
    given = {name: getattr(options, name, None) for name in SETTINGS if name != "config"}
    try:
        # A command without settings is heard whatever they are: it may be what makes them usable.
        has_settings = hasattr(options, "config")
        return handler(options, Config.load(options.config, **given) if has_settings else Config())
    except (
        ConfigurationError,
        InvalidRequest,
        DemoError,
        MissingExtra,
        UnusableInput,
        UnusableQueries,
        UnusableReceipt,
    ) as error:
        return _fail(Exit.USAGE, error)
    except (BrokenLog, RequestRejected, Superseded) as error:
        return _fail(Exit.REFUSED, error)
    except (
        ServiceUnavailable,
        DecisionTimeout,
        PartitionError,
        JournalUnavailable,
        LocalStackError,
        TopicsUnavailable,
        Unavailable,
        UnreadableService,
    ) as error:
        return _fail(Exit.UNAVAILABLE, error)
    except ConflictingDecisions as error:
        return _fail(Exit.SOFTWARE, error)
    except TurnstileError as error:
        return _fail(Exit.REFUSED, error)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return Exit.OK  # the reader (head, less) has read enough
    except Exception:
        note(traceback.format_exc())
        note("turnstile: this is a bug; what is above says where")
        return Exit.SOFTWARE


def _fail(code: Exit, error: Exception) -> int:
    """Say what went wrong, after where it did (its notes)."""
    note(": ".join(["turnstile", *getattr(error, "__notes__", ()), str(error)]))
    return code
