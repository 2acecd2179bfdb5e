"""The documentation site, which ``make docs`` builds into ``out/docs``.

Its source is this repository as it is, so that links work in the site and in the files.
"""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

SITE = Path(__file__).parent
sys.path[:0] = [str(SITE), str(SITE.parents[1])]

lexers["mermaid"] = TextLexer()  # the site shows a drawing's source; GitHub draws it

project = "dp-turnstile"
copyright = "the authors of dp-turnstile"
version = release = metadata.version("dp-turnstile")

root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "accounting/THEOREMS.md",
    "deploy/README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "README.md",
]
exclude_patterns = [".*", "build", "dist", "docs/wire", "out", "tests"]  # not pages of the site
extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "first_page",
    "no_breaks",
]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # documents that are read as files begin at any level

copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = "dp-turnstile"
html_baseurl = tomllib.loads((SITE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]["urls"]["Documentation"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "native"
