"""The paper's models: `build` makes one from its name, `names` lists them."""

from vit_jax.models.variants import build, names
from vit_jax.models.vit import stack_blocks, unstack_blocks

__all__ = ['build', 'names', 'stack_blocks', 'unstack_blocks']
