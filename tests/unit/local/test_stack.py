"""A stack that is stopped before it has started anything."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from streams.local import LocalStack, stack
from streams.local.directory import DataDirectory


def test_a_signal_while_the_directory_is_made_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal is held until there is a directory, and delivered when somebody removes it."""

    def make(data: Path | None) -> DataDirectory:
        made = DataDirectory(data)
        assert list(tmp_path.iterdir()) == [made.path]
        os.kill(os.getpid(), signal.SIGINT)
        return made

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(stack, "DataDirectory", make)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            LocalStack(workers=0).start()
    finally:
        signal.signal(signal.SIGINT, before)
    assert list(tmp_path.iterdir()) == []
