"""Signals wait while something is started or put away, and none is lost."""

from __future__ import annotations

import signal
import threading

import pytest

from streams.local.children import STOPPING, signals_held


class Came(Exception):
    """What a handler raises."""


@pytest.fixture(autouse=True)
def raising_handlers():
    def handle(number: int, frame: object) -> None:
        raise Came(signal.Signals(number))

    before = {number: signal.signal(number, handle) for number in STOPPING}
    yield handle
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_is_delivered_after_what_must_not_be_interrupted(number) -> None:
    done = []

    def start() -> None:
        with signals_held():
            signal.raise_signal(number)
            done.append("the next line")

    with pytest.raises(Came) as came:
        start()
    assert came.value.args == (number,)
    assert done == ["the next line"]


def test_what_must_not_wait_is_called_for_each_signal() -> None:
    calls = []

    def stop() -> None:
        with signals_held(lambda: calls.append("at once")):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            assert calls == ["at once"] * 2

    with pytest.raises(Came):
        stop()


def test_handlers_are_put_back_also_after_an_error(raising_handlers) -> None:
    error = ValueError("inside")
    with pytest.raises(ValueError) as raised, signals_held():
        raise error
    assert raised.value is error
    assert all(signal.getsignal(number) is raising_handlers for number in STOPPING)


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals_held():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.raise_signal(signal.SIGHUP)


def test_other_threads_hold_nothing(raising_handlers) -> None:
    seen = []

    def hold() -> None:
        with signals_held():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert seen == [raising_handlers]
