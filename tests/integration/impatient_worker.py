"""A worker with short heartbeat and watch intervals, so that tests wait less."""

import sys

from streams.cli.main import main
from streams.worker import app, heartbeat, ownership

heartbeat.BEAT_EVERY = ownership.BEAT_EVERY = 0.5
ownership._WATCH_EVERY = 0.5
app._SESSION_SECONDS = 3.0

sys.exit(main(["worker"]))
