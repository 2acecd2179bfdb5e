"""The exception of the demo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streams.local.launch_errors import how_to_install


class DemoError(Exception):
    """The demo cannot run as requested; the message says what to do."""


@contextmanager
def demo_extra() -> Iterator[None]:
    """Translate the missing import of a package that only the demo needs into a DemoError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise DemoError(
            f"the demo needs the package {error.name}; install it with {how_to_install('demo')}"
        ) from error
