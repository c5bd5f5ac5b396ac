"""The Vision Transformer paper (arXiv:2010.11929) as a program, in JAX."""

import importlib
import pathlib

__version__ = '0.1.0'

# The documented names such as `vit_jax.models.build` need no import of their
# own.
_ROOMS = (
  *('compare', 'config', 'data', 'evaluators', 'features', 'inspect'),
  *('interop', 'models', 'predict', 'results'),
)

# In a checkout, `vit_jax.configs` and `vit_jax.launch` lie beside this folder.
# In an installed package, they lie inside it (setup.py).
if not pathlib.Path(__file__).with_name('configs').is_dir():
  __path__.append(str(pathlib.Path(__file__).parents[1]))
__path__.append(str(pathlib.Path(__file__).with_name('aliases')))


def __getattr__(name: str):
  # Loaded only when it is used, since it imports JAX, which takes seconds.
  if name == 'load':
    return importlib.import_module('vit_jax.predict').load
  if name in _ROOMS:
    return importlib.import_module(f'vit_jax.{name}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
