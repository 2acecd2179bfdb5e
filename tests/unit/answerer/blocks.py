"""Files of queries whose answers are corrected in blocks, and events that leave users out."""

from __future__ import annotations

from tests.unit.answerer.asking import COUNT, FILE

BLOCKS = "block = 2\ncorrected = 4"
CORRECTED = COUNT.replace("noise = 1.0", f"active_windows = 2\nleft_out = 0.4\n{BLOCKS}")
SLIDING = CORRECTED.replace('"10ms"', '"8ms"\nevery = "4ms"').replace(
    BLOCKS, "block = 3\ncorrected = 10"
)
SUM = CORRECTED.replace('"count"\nkind = "count"', '"sum"\nkind = "sum"\ncolumn = "x"')
TWO = FILE + CORRECTED + SLIDING.replace('"count"\nkind', '"slid"\nkind')
EVENTS = [(user, time) for time in range(0, 66, 2) for user in (time % 3, 5, 5)]
