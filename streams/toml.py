"""Reads the TOML files that people write: settings and queries."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


class UnusableToml(Exception):
    """A file cannot be read, or is not TOML."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a file; ``UnusableToml`` says why not, without quoting values."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise UnusableToml(f"{path} is nested too deep: take out some brackets") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnusableToml(f"{path} is not TOML: {error}") from error
    except ValueError as error:  # a NUL in the path, or an integer of thousands of digits
        raise UnusableToml(f"cannot read {str(path)!r}: {error}") from None
    except OSError as error:
        raise UnusableToml(f"cannot read {path}: {error}") from error
