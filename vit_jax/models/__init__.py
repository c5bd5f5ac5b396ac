"""The paper's models: `build` makes one from its name, `names` lists them."""

from vit_jax.models.encoder import unstack_blocks
from vit_jax.models.variants import build, names, options, paper_name, parse

__all__ = [
  'build',
  'names',
  'options',
  'paper_name',
  'parse',
  'unstack_blocks',
]
