"""Signals that wait while something is started or put away."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a program to end: Ctrl-C, a supervisor, a terminal that was closed."""


@contextmanager
def signals_held(on_signal: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let nothing come in between: signals that arrive inside are delivered afterwards.

    A handler may raise, so that a signal between the start of a child and the line that remembers
    it would leave a child that nobody ends. Outside of the main thread, where no signal is
    handled, this does nothing.

    Args:
        on_signal: called for each signal at once, for what must not wait.
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
            # What is ignored (nohup) stays so; what was not set by Python cannot be put back.
            if handler not in (signal.SIG_IGN, None):
                before[number] = handler
                signal.signal(number, hold)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)
