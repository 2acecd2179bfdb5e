"""One line of the table, and the colours of plots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

BLUE, ORANGE, GREEN, GREY = "#1f6f8b", "#d9772b", "#4d8b31", "#8a9099"


@dataclass(frozen=True)
class Row:
    """A figure of a paper and the same figure as computed here."""

    source: str
    what: str
    published: str
    here: str


def markdown(rows: Iterable[Row]) -> str:
    """The rows as a table."""
    head = ["| source | what | published | here |", "|---|---|---|---|"]
    return "\n".join(
        head + [f"| {row.source} | {row.what} | {row.published} | {row.here} |" for row in rows]
    )


def with_error(values: ArrayLike, digits: int = 2) -> str:
    """Format the mean of independent trainings and its standard error."""
    found = np.asarray(values, np.float64)
    error = np.std(found, ddof=1) / len(found) ** 0.5
    return f"{np.mean(found):.{digits}f} ± {error:.{digits}f}"
