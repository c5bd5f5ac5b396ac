"""The Vision Transformer paper (arXiv:2010.11929) as a program, in JAX."""

import importlib
import pathlib
import sys

__version__ = '0.1.0'

# The documented names such as `vit_jax.models.build` need no import of their
# own.
_ROOMS = (
  *('compare', 'config', 'data', 'evaluators', 'features', 'interop'),
  *('models', 'predict', 'results'),
)

# In a checkout, `vit_jax.configs` and `vit_jax.launch` lie beside this folder.
# In an installed package, they lie inside it (setup.py).
if not pathlib.Path(__file__).with_name('configs').is_dir():
  __path__.append(str(pathlib.Path(__file__).parents[1]))
# `vit_jax.inspect` is the public name of `inspection`. A file of that name here
# would replace the standard library's for each program beside it.
inspect = importlib.import_module('vit_jax.inspection')
sys.modules['vit_jax.inspect'] = inspect


def __getattr__(name: str):
  # Loaded only when it is used, since it imports JAX, which takes seconds.
  if name == 'load':
    return importlib.import_module('vit_jax.predict').load
  if name in _ROOMS:
    return importlib.import_module(f'vit_jax.{name}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
