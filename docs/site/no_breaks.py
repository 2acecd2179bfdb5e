"""Where no line ends: within an option of a table of commands, and within a number with its error.

Pages are read as files as well, so that nothing of it stands in them.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

_OPTION = re.compile(r"--?[a-z-]+ [A-Z0-9]+|\[[^]]+\]")
"""An option with its value, or what is in brackets."""
_NUMBER = re.compile(r"\d ± [\d.]+( %)?|\d %")


def _joined(words: re.Match[str]) -> str:
    return words[0].replace(" ", "\N{NO-BREAK SPACE}")


def _keep_together(app: Sphinx, page: nodes.document) -> None:
    for table in page.findall(nodes.table):
        first = [row[0].next_node(nodes.literal) for row in table.findall(nodes.row)]
        if any(code and code.astext().startswith("turnstile ") for code in first):
            table["classes"].append("commands")
            for code in table.findall(nodes.literal):
                code.children = [nodes.Text(_OPTION.sub(_joined, code.astext()))]
    for text in list(page.findall(nodes.Text)):
        if isinstance(text.parent, nodes.literal | nodes.literal_block):
            continue
        if _NUMBER.search(text):
            text.parent.replace(text, nodes.Text(_NUMBER.sub(_joined, text)))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("doctree-read", _keep_together)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
