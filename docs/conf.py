"""Sphinx configuration.  Reference pages are written from the rows before each build."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import matplotlib as mpl  # noqa: E402 - after the path
import rows  # noqa: E402 - beside this file

from demo import classics  # noqa: E402
from smelt.packages.version import __version__  # noqa: E402

project = "Smelt"
author = "The Smelt authors"
copyright = "2026, The Smelt authors"  # noqa: A001 - Sphinx's name
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.githubpages", "sphinx_gallery.gen_gallery"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_extra", "gallery/GALLERY_HEADER.rst"]
html_extra_path = ["_extra"]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = f"Smelt {__version__}"
html_theme_options = {"navigation_with_keys": True}
nitpicky = True

mpl.use("agg")
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"[a-z]_\w+\.py$",
    "ignore_pattern": r"charts\.py$",
    "within_subsection_order": "FileNameSortKey",
    "capture_repr": (),
    "matplotlib_animations": False,
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "nested_sections": False,
    "write_computation_times": False,
    "min_reported_time": 60,
}
"""Examples run in the build; one that fails stops it."""

rows.write(HERE / "reference" / "generated")
(HERE / "_extra").mkdir(exist_ok=True)
(HERE / "_extra" / "classics_page.html").write_text(classics.page(), encoding="utf-8")
