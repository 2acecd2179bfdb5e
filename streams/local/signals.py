"""Delays signals while a process is started or stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a program to end: from Ctrl-C, a supervisor, a closed terminal."""


@contextmanager
def signals_held(on_signal: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Deliver signals that arrive within this context at its end.

    A signal handler may raise. Between the start of a child and the line that stores it, that would
    leave a child that is never ended. Outside the main thread, where Python handles no signals,
    this context does nothing.

    Args:
        on_signal: called for each signal immediately.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[signal.Signals] = []

    def hold(number: int, frame: FrameType | None) -> None:
        arrived.append(signal.Signals(number))
        on_signal()

    before = {}
    try:
        for number in STOPPING:
            handler = signal.getsignal(number)
            # Ignored signals (nohup) stay ignored; a handler not set by Python cannot be restored.
            if handler not in (signal.SIG_IGN, None):
                before[number] = handler
                signal.signal(number, hold)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)
