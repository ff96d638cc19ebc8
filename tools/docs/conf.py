"""Sphinx's configuration. The source folder is a copy that tools/docs/stage.py makes."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tools.version import version as _version

project = "Crestgate"
release = _version()
version = release
copyright = "the Crestgate contributors"  # noqa: A001 - Sphinx's name

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns: list[str] = []
templates_path = ["templates"]
smartquotes = False  # what is quoted is often typed

myst_heading_anchors = 4  # headings have the anchors that code hosts give them
suppress_warnings = ["misc.highlighting_failure"]  # blocks with an ellipsis in them are shown without colours

html_theme = "furo"
html_title = f"Crestgate {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["versions.js", "version-menu.js"]
html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None
html_use_index = False  # there are no entries for one
html_theme_options: dict[str, list[str]] = {"footer_icons": [], "top_of_page_buttons": []}
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/version.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
