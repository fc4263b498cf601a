"""How Sphinx builds the documentation: `make docs` calls it, without network and with warnings as errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

from sphinx.ext.napoleon.docstring import GoogleDocstring

from cfel import __version__

project = "cfel"
author = "The cfel authors"
release = version = __version__

extensions = [
    *("myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"),
    *("root_files", "code_reference"),
]
exclude_patterns = ["_extensions"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]
# The terminal's prompt is not part of a command.
copybutton_prompt_text = "$ "
# In docstrings, single backquotes mean code, as in Markdown.
default_role = "code"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# Napoleon takes what precedes a colon in the docstring of a property to be its type. Ours are sentences.
GoogleDocstring._parse_attribute_docstring = lambda self: list(self._lines)

html_theme = "furo"
html_title = "cfel"
html_static_path = ["_static"]
html_css_files = ["cfel.css"]
html_copy_source = html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
html_show_copyright = False
