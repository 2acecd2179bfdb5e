"""Non-breaking spaces in numbers with their errors, and a class for tables of commands.

Pages are also read as files, so their text does not contain this.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

_NUMBER = re.compile(r"\d ± [\d.]+( %)?|\d %")


def _joined(words: re.Match[str]) -> str:
    return words[0].replace(" ", "\N{NO-BREAK SPACE}")


def _keep_together(app: Sphinx, page: nodes.document) -> None:
    for table in page.findall(nodes.table):
        first = [row[0].next_node(nodes.literal) for row in table.findall(nodes.row)]
        if any(code and code.astext().startswith("turnstile ") for code in first):
            table["classes"].append("commands")
    for text in list(page.findall(nodes.Text)):
        if isinstance(text.parent, nodes.literal | nodes.literal_block):
            continue
        if _NUMBER.search(text):
            text.parent.replace(text, nodes.Text(_NUMBER.sub(_joined, text)))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("doctree-read", _keep_together)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
