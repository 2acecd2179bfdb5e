"""A worker whose clock jumps, and which notices rebalances and lost members quickly."""

from __future__ import annotations

import runpy
from pathlib import Path

import tests.integration
from tests.chaos import clock

clock.follow()
runpy.run_path(str(Path(tests.integration.__file__).with_name("impatient_worker.py")))
