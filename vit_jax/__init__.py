"""The Vision Transformer paper (arXiv:2010.11929) as a program, in JAX."""

import pathlib

from vit_jax.workdir import buckets

__version__ = '0.1.0'

# A checkout has `vit_jax.configs` and `vit_jax.launch` at its top. An installed
# package has them in this folder (setup.py).
if not pathlib.Path(__file__).with_name('configs').is_dir():
  __path__.append(str(pathlib.Path(__file__).parents[1]))

buckets.register()
