"""Tables of commands: a line may end between two options, and within none.

Pages are read as files as well, so that nothing of it stands in them.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

_OPTION = re.compile(r"--?[a-z-]+ [A-Z0-9]+|\[[^]]+\]")
"""An option with its value, or what is in brackets."""


def _keep_together(app: Sphinx, page: nodes.document) -> None:
    for table in page.findall(nodes.table):
        first = [row[0].next_node(nodes.literal) for row in table.findall(nodes.row)]
        if not any(code and code.astext().startswith("turnstile ") for code in first):
            continue
        table["classes"].append("commands")
        for code in table.findall(nodes.literal):
            together = _OPTION.sub(lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"),
                                   code.astext())  # fmt: skip
            code.children = [nodes.Text(together)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("doctree-read", _keep_together)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
