"""The first page lies in ``docs/`` like all others, and its table is the site's navigation."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

_LEADS_ON = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={page}">
<title>{title}</title>
<a href="{page}">{title}</a>
"""
_ROW = re.compile(r"^\| (\w[\w ]*) \| (\[.*) \|$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#]+)\.md")


def _navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Make a hidden table of contents of each row: GitHub shows the table alone."""
    if docname == app.config.root_doc:
        for section, links in _ROW.findall(source[0]):
            pages = "\n".join(_LINK.findall(links))
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {section}\n\n{pages}\n```\n"


def _write(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        text = _LEADS_ON.format(page=f"{app.config.root_doc}.html", title=app.config.html_title)
        Path(app.outdir, "index.html").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _navigation)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
