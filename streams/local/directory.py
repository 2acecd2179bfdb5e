"""The data directory of a stack: permanent or temporary, and locked by one stack at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from streams.local.launch_errors import LocalFailure, LocalStackError

_PREFIX = "dp-turnstile-"
_LOCK = ".lock"
_WAIT = 15.0  # seconds; the children of a killed stack take some time to end
_POLL = 0.1
_STALE_AFTER = 60.0


def make_private(folder: Path) -> None:
    """Make sure that a folder exists and that only its owner can enter it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically, readable by its owner only."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)


class DataDirectory:
    """A directory and the lock on it.

    A new directory has mode 0700; an existing one keeps its mode. The children inherit the lock, so
    it is free only when the last child has ended, even after a kill -9 of the stack. So two brokers
    never share a log.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        """Create and lock the directory, without a path a temporary one.

        It waits for the children of a stack that was killed.

        Raises:
            LocalStackError: the directory cannot be used, or another stack uses it.
        """
        self.temporary = path is None
        if path is None:
            self.path = Path(tempfile.gettempdir(), f"{_PREFIX}{token_hex(8)}")
        else:
            self.path = _allowed_by_kafka(Path(path).expanduser().absolute())
        try:
            if self.temporary:
                _remove_stale()
            self.path.mkdir(mode=0o700, parents=True, exist_ok=not self.temporary)
            self.lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LocalStackError(
                LocalFailure.UNUSABLE_DIRECTORY,
                f"The data directory cannot be used: {error}. Use a writable one.",
            ) from error
        deadline = time.monotonic() + _WAIT
        while not _try_lock(self.lock):
            if time.monotonic() >= deadline:
                os.close(self.lock)
                raise LocalStackError(
                    LocalFailure.DIRECTORY_IN_USE,
                    f"Another stack uses the data directory {self.path}. "
                    "Stop it first, or use another directory.",
                )
            time.sleep(_POLL)

    def close(self, keep: bool = False) -> None:
        """Release the lock; remove a temporary directory unless ``keep``."""
        if self.temporary and not keep:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def _allowed_by_kafka(path: Path) -> Path:
    """Refuse a path that Kafka's settings cannot contain, where a comma separates directories."""
    if any(letter == "," or not letter.isprintable() for letter in str(path)):
        raise LocalStackError(
            LocalFailure.UNUSABLE_DIRECTORY,
            f"The data directory cannot be used: {str(path)!r} has a comma or an unprintable "
            "character, which Kafka's settings cannot contain. Use another one.",
        )
    return path


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_stale() -> None:
    """Remove temporary directories of killed stacks: owned by this user, and not locked."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = (directory / _LOCK).lstat()
            # The creator of a new lock file may not have locked it yet.
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _STALE_AFTER:
                continue
            descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if _try_lock(descriptor):
                    shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(descriptor)
