"""The registry of all mutations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

Patches = Iterator[AbstractContextManager[Any]]

MUTATIONS: dict[str, Callable[[], Patches]] = {}


def mutation(work: Callable[[], Patches]) -> Callable[[], Patches]:
    MUTATIONS[work.__name__.replace("_", "-")] = work
    return work


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Run the block with one guarantee removed."""
    with ExitStack() as stack:
        for change in MUTATIONS[name]():
            stack.enter_context(change)
        yield


replaced = patch.object


async def yes() -> bool:
    return True
