"""The sections and the numbers of the benchmark report."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Sequence


def section(
    title: str, text: str, names: Sequence[str], rows: Iterable[Sequence[object]]
) -> list[str]:
    """Return a title, a paragraph and a table in Markdown."""
    cells = [names, ["---"] * len(names), *rows]
    table = [f"| {' | '.join(map(str, row))} |" for row in cells]
    return [f"## {title}", "", text, "", *table, ""]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median (smallest to largest)."""
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def document(lines: Sequence[str]) -> str:
    """Return the report as Markdown."""
    machine = (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}; broker, Redis (append-only file, fsync every "
        "second), worker and load all on this machine."
    )
    return "\n".join(["# Benchmarks", "", machine, "", *lines])
