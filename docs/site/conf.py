"""The documentation site, which ``make docs`` builds into ``out/docs``.

Its source is this repository as it is, so that links work in the site and in the files.
"""

from __future__ import annotations

import sys
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
    "accounting/*.md",
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
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "docstrings",
    "first_page",
    "no_breaks",
    "protocol_page",
    "pictures",
]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # documents that are read as files begin at any level

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_use_ivar = True
napoleon_custom_sections = [("Raises (in ``update``)", "Raises")]
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = "dp-turnstile"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "native"
