"""Whether there is a dataset of which nothing was found."""

from __future__ import annotations

from streams.cli.output import Exit, note
from streams.config import Config
from streams.operations.errors import Unavailable
from streams.operations.status import read_datasets


def nothing_of(dataset: str | None, what: str, config: Config) -> Exit:
    """Say why nothing is shown of a dataset: there is none, or it has nothing of what was asked
    for. Redis says which; who does not reach it is told that there was nothing.
    """
    if dataset is None:
        return Exit.OK
    if is_known_absent(dataset, config):
        return no_dataset(dataset)
    note(f"turnstile: there is nothing of dataset {dataset!r} among {what}")
    return Exit.OK


def warn_of_absent(dataset: str | None, config: Config) -> None:
    """Tell who follows a dataset that there is not yet: it may be mistyped, or be created."""
    if dataset is not None and is_known_absent(dataset, config):
        note(f"turnstile: there is no dataset {dataset!r} yet: this waits until there is")


def is_known_absent(dataset: str, config: Config) -> bool:
    """Whether there is certainly no such dataset."""
    try:
        return dataset not in read_datasets(config)
    except Unavailable:
        return False


def no_dataset(dataset: str) -> Exit:
    """Say that there is no such dataset."""
    note(f"turnstile: there is no dataset {dataset!r}: `turnstile dataset list` shows all")
    return Exit.REFUSED
