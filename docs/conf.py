"""The site: pages in Markdown, the Python API from its docstrings."""

import ringcore

project = "ringcore"
author = "The ringcore authors"
copyright = author
release = ringcore.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["images"]
html_theme = "furo"
html_title = f"ringcore {release}"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
