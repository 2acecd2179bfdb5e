"""Docstrings are written to be read in the code; what reStructuredText misreads is marked here.

An indented paragraph is an example, and |x| is the norm of x.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_NORM = re.compile(r"\|(?=\S)([^|`]*?\S)\|")


def _marked(app: Sphinx, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    marked: list[str] = []
    example = False
    for number, line in enumerate(lines):
        after_blank = number > 0 and not lines[number - 1]
        if line.startswith("    ") and after_blank and not example:
            marked += ["::", ""]
            example = True
        elif line and not line.startswith(" "):
            example = False
        marked.append(line if example else _NORM.sub(r"\|\1\|", line))
    lines[:] = marked


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _marked, priority=400)  # before napoleon's sections
    return {"parallel_read_safe": True, "parallel_write_safe": True}
