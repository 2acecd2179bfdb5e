"""Files of queries whose answers are corrected in blocks, and events that leave users out."""

from __future__ import annotations

from typing import Any

from tests.unit.answerer.asking import COUNT, FILE, asked_of, event
from tests.unit.answerer.lives import World

BLOCKS = "block = 2\ncorrected = 4"
CORRECTED = COUNT.replace("noise = 1.0", f"active_windows = 2\nleft_out = 0.4\n{BLOCKS}")
SLIDING = CORRECTED.replace('"10ms"', '"8ms"\nevery = "4ms"').replace(
    BLOCKS, "block = 3\ncorrected = 10"
)
SUM = CORRECTED.replace('"count"\nkind = "count"', '"sum"\nkind = "sum"\ncolumn = "x"')
TWO = FILE + CORRECTED + SLIDING.replace('"count"\nkind', '"slid"\nkind')
EVENTS = [(user, time) for time in range(0, 66, 2) for user in (time % 3, 5, 5)]


def corrected(**options: Any) -> World:
    """Return a world in which users are left out, and whose answers are corrected."""
    world = World(asked_of(TWO), **options)
    world.events = [event(user, time) for user, time in EVENTS]
    return world
