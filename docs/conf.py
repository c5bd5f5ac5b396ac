"""Settings of the documentation: `sphinx-build -W docs build/docs`."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

project = 'vit_jax'
extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
html_theme = 'furo'
html_title = 'vit_jax'
html_show_copyright = False
# Docstrings have code between single backquotes.
default_role = 'code'
autodoc_typehints = 'description'
autodoc_typehints_description_target = 'documented'
myst_enable_extensions = ['deflist']
myst_heading_anchors = 3
# A link that leads nowhere ends the build (-W); --nitpicky would ask for the
# documentation of every type that a signature names.
exclude_patterns = ['build']
