"""Converts parameters of unrolled blocks for models with `scan=True`."""

import jax
import jax.numpy as jnp


def stack_blocks(params: dict) -> dict:
  """Inverts `models.unstack_blocks`."""
  encoder = dict(params['Transformer'])
  blocks = []
  while (name := f'encoderblock_{len(blocks)}') in encoder:
    blocks.append(encoder.pop(name))
  encoder['encoderblock'] = jax.tree.map(lambda *a: jnp.stack(a), *blocks)
  return {**params, 'Transformer': encoder}
