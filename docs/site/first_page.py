"""``index.html`` leads to the first page, which lies in ``docs/`` like all others."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

_LEADS_ON = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={page}">
<title>{title}</title>
<a href="{page}">{title}</a>
"""


def _write(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        text = _LEADS_ON.format(page=f"{app.config.root_doc}.html", title=app.config.html_title)
        Path(app.outdir, "index.html").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
