"""Which patches of an image masked patch prediction corrupts, and how.

The corruption is a function of one key per image, so it depends neither on the
mesh nor on the number of micro-batches.

Axes: `B` batch, `L` patches of an image.
"""

import dataclasses

import jax
import jax.numpy as jnp

from vit_jax.models.vit import MASK

_RNG = 'threefry2x32'  # Fast enough here; independent of dropout's generator.


@dataclasses.dataclass(frozen=True)
class Corruption:
  """How patch embeddings are corrupted (B.1.2).

  The paper leaves some details open. Here, each image has the same number of
  corrupted patches, so that a mean over them does not depend on how a batch is
  split. The kind of corruption is drawn independently for each patch. A
  replacement patch comes from the same image; all positions except the patch's
  own are equally likely.

  Attributes:
    length: L.
    count: number of corrupted patches of each image.
    mask_share: expected share of them that gets the mask embedding.
    other_share: expected share that gets another patch's embedding; the rest
      keeps its own.
  """

  length: int
  count: int
  mask_share: float
  other_share: float

  def draw(self, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws the corruption of images.

    Args:
      keys: uint32 [B, 2], see `image_keys`.

    Returns:
      corrupted: bool [B, L], with `count` True values in each row.
      source: int32 [B, L], the position whose embedding each patch gets (its
        own or another), or MASK.
    """
    return jax.vmap(self._draw_one)(jax.random.wrap_key_data(keys, impl=_RNG))

  def _draw_one(self, key):
    order_key, kind_key, other_key = jax.random.split(key, 3)
    order = jax.random.permutation(order_key, self.length)  # [L]
    kind = jax.random.uniform(kind_key, (self.length,))
    distance = jax.random.randint(other_key, (self.length,), 1, self.length)
    own = jnp.arange(self.length)
    other = (own + distance) % self.length
    corrupted = order < self.count
    source = jnp.where(
      kind < self.mask_share,
      MASK,
      jnp.where(kind < self.mask_share + self.other_share, other, own),
    )
    return corrupted, jnp.where(corrupted, source, own)


def corruption_key(seed: int) -> jax.Array:
  """Returns the key for the corruption of a run's training images."""
  return jax.random.fold_in(jax.random.key(seed, impl=_RNG), 3)


def image_keys(key: jax.Array, rows: jax.Array) -> jax.Array:
  """Returns a key for each image, as numbers that a batch can hold.

  Args:
    key: the key of the batch or of the data set.
    rows: int32 [B], the indices of the images in it.

  Returns:
    uint32 [B, 2].
  """
  return jax.random.key_data(
    jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows)
  )
