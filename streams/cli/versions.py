"""Which release this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def release() -> str:
    """Of the package that is installed."""
    try:
        return version("dp-turnstile")
    except PackageNotFoundError:
        return "(not installed)"
