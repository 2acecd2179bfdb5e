"""Packages that only some commands need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streams.local.errors import how_to_install


class MissingExtra(Exception):
    """A package is not installed; the text says how to install it."""


@contextmanager
def extra(name: str, command: str) -> Iterator[None]:
    """Around the imports of the packages of an extra.

    Raises:
        MissingExtra: one of them is not there.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{command} needs the package {error.name}: {how_to_install(name)} brings it"
        ) from error
