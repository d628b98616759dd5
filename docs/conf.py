"""The site: pages in Markdown, the Python API from its docstrings."""

import sys
from pathlib import Path

import ringcore

sys.path.insert(0, str(Path(__file__).parent / "_sphinx"))

project = "ringcore"
author = "The ringcore authors"
copyright = author
release = ringcore.__version__
extensions = ["myst_parser", "sphinx_design", "sphinx.ext.napoleon", "exports"]
exclude_patterns = ["images", "_sphinx"]
myst_enable_extensions = ["colon_fence", "fieldlist"]
myst_heading_anchors = 3
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["page.css"]
html_title = f"ringcore {release}"
napoleon_use_ivar = True
suppress_warnings = ["ref.python"]  # a name in a signature that several modules offer
