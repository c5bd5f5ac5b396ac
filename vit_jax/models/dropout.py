"""Dropout with two masks in each random number."""

import flax.linen as nn
import jax
import jax.numpy as jnp

# Random bits of a unit: the rate is exact to 1 / 65,536. A random number has
# 32, and takes time to make, write and read. With 8, a rate of 0.1 would be
# 0.1016.
_BITS = 16
_ROWS = 32 // _BITS  # Rows of a batch that share their random numbers.


class Dropout(nn.Module):
  """Sets units to 0, and divides the others by the share that is kept.

  Attributes:
    rate: probability of zeroing, at least 0 and below 1.
    deterministic: change nothing; takes no random key.
  """

  rate: float
  deterministic: bool = False

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, ...] to the same shape and dtype."""
    if self.deterministic or self.rate == 0:
      return x
    numbers = 2**_BITS
    kept = max(1, round((1 - self.rate) * numbers))
    rows, *others = x.shape
    key = self.make_rng('dropout')
    with jax.named_scope('random_bits'):  # `vit_jax.plan` knows them by it.
      words = jax.random.bits(key, (-(-rows // _ROWS), *others), jnp.uint32)
      # Neighbouring rows share words: so the rows stay on their devices, and
      # the compiler needs no copy to bring them into order.
      shifts = jnp.arange(0, 32, _BITS, dtype=jnp.uint32)
      shifts = shifts.reshape(-1, *(1 for _ in others))
      drawn = (words[:, None] >> shifts) & (numbers - 1)
      mask = drawn.reshape(-1, *others)[:rows] < kept
    return jnp.where(mask, x * (numbers / kept), jnp.zeros_like(x))
