"""Sphinx configuration.  Reference pages are written from the rows before each build."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import rows  # noqa: E402 - beside this file

from smelt.demo import classics  # noqa: E402
from smelt.version import __version__  # noqa: E402

project = "Smelt"
author = "The Smelt authors"
copyright = "2026, The Smelt authors"  # noqa: A001 - Sphinx's name
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.githubpages"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_extra"]
html_extra_path = ["_extra"]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"Smelt {__version__}"
html_theme_options = {"navigation_with_keys": True}
nitpicky = True

rows.write(HERE / "reference" / "generated")
(HERE / "_extra").mkdir(exist_ok=True)
(HERE / "_extra" / "classics_page.html").write_text(classics.page(), encoding="utf-8")
