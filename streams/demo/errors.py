"""What can go wrong for someone who runs a demo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streams.local.errors import how_to_install


class DemoError(Exception):
    """The demo cannot run as it was asked to; the text says what to do."""


@contextmanager
def demo_extra() -> Iterator[None]:
    """Around the imports of the packages that only the demo needs."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise DemoError(
            f"the demo needs the package {error.name}: {how_to_install('demo')} brings it"
        ) from error
