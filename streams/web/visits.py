"""The links that were opened, left or revoked, in a file that outlives the portal.

A link that is not in the file was never opened. Its first visit puts it there, and only then its
session counts. The file has ids of links and no ids of users. A link stays in it until it ends.

The portal and `turnstile portal revoke` use the file at the same time. It is an SQLite database:
each change is atomic and on the disk before it is answered.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from threading import Lock

from streams.config import ConfigurationError
from streams.web.links import Claims

_WAITS = 5.0  # seconds for another process that writes
_TABLE = """
CREATE TABLE IF NOT EXISTS links (
    id TEXT PRIMARY KEY,
    ends INTEGER NOT NULL,
    is_open INTEGER NOT NULL
) WITHOUT ROWID
"""


class Visits:
    """One file. Every method can be called in any thread.

    Args:
        path: of the file, which is created if it is missing.

    Raises:
        ConfigurationError: the file cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        self._lock = Lock()
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._file = sqlite3.connect(
                path, timeout=_WAITS, isolation_level=None, check_same_thread=False
            )
            self._file.execute(_TABLE)
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"portal_state is {str(path)!r}, and the portal cannot keep opened and revoked "
                f"links there: {error}"
            ) from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def begin(self, claims: Claims, now: float) -> bool:
        """Record the first visit of a link; return False if it was opened or revoked before.

        Args:
            claims: of the link.
            now: seconds since 1970. Links that have ended are dropped from the file.
        """
        with self._lock:
            self._file.execute("DELETE FROM links WHERE ends <= ?", (int(now),))
            new = self._file.execute(
                "INSERT INTO links VALUES (?, ?, 1) ON CONFLICT (id) DO NOTHING",
                (claims.id, claims.ends),
            )
            return new.rowcount == 1

    def is_open(self, link: str) -> bool:
        """Return whether a link was opened, and neither left nor revoked."""
        with self._lock:
            found = self._file.execute("SELECT is_open FROM links WHERE id = ?", (link,)).fetchone()
        return found is not None and bool(found[0])

    def end(self, link: str, ends: int) -> bool:
        """End a link and its session for ever; return whether the link was opened before.

        Args:
            link: its id.
            ends: seconds since 1970, not before the link ends by itself.
        """
        with self._lock:
            known = self._file.execute("SELECT 1 FROM links WHERE id = ?", (link,)).fetchone()
            self._file.execute(
                "INSERT INTO links VALUES (?, ?, 0) ON CONFLICT (id) DO UPDATE SET is_open = 0",
                (link, ends),
            )
        return known is not None
