"""Who follows what is decided, and how following ends."""

from __future__ import annotations

import itertools
import threading
from contextlib import closing
from typing import Any

import pytest

from streams import (
    Halt,
    InvalidRequest,
    Turnstile,
    Unusable,
)


def test_follower_receives_charges_of_others(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=0.25, odometer_step=0.1)
    run = turnstile.run(name, "r")
    halts = turnstile.halts(name)  # the position is fixed here
    bounds = turnstile.odometer(name, user="a")
    heard: list[Halt] = []
    thread = threading.Thread(target=lambda: heard.extend(itertools.islice(halts, 2)))
    thread.start()
    for norm in (0.6, 0.3, 1.0, 1.0):
        run.charge(["a"], [norm], noise_stddev=1.0)
    thread.join(60.0)
    assert [(halt.step, halt.user, halt.exhausted) for halt in heard] == [
        (2, "a", False),
        (3, "a", False),
    ]
    assert next(bounds).bound[0] >= 0.18
    with closing(turnstile.halts(name, idle_timeout=0.3)) as idle:
        assert list(idle) == []


def test_following_ends_when_the_turnstile_is_closed(turnstile: Turnstile, name: str) -> None:
    ended: list[BaseException] = []
    halts = turnstile.halts(name)

    def follow() -> None:
        try:
            next(halts)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    turnstile.close()
    turnstile.close()
    thread.join(60.0)
    assert [type(error) for error in ended] == [Unusable]


@pytest.mark.parametrize("options", [{"since": "yesterday"}, {"idle_timeout": -1.0}], ids=str)
def test_invalid_options_are_rejected(turnstile: Turnstile, options: dict[str, Any]) -> None:
    for follow in (turnstile.halts, turnstile.odometer):
        with pytest.raises(InvalidRequest):
            list(follow("d", follow=False, **options))
