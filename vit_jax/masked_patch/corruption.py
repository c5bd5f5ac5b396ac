"""Which patch embeddings are corrupted, and what stands in their place.

A function of one key for each image, so that neither the mesh nor the number of
micro-batches matters, however the work is split.

Axes: `B` batch, `L` patches of an image.
"""

import dataclasses

import jax
import jax.numpy as jnp

from vit_jax.models.embedding import MASK

_RNG = 'threefry2x32'  # Whatever dropout uses: these are few numbers.


@dataclasses.dataclass(frozen=True)
class Corruption:
  """How patch embeddings are corrupted (B.1.2).

  The paper leaves two things open. Each image has equally many corrupted
  patches here, so that a mean over them is the same in any split of a batch;
  what becomes of each is drawn independently. Another patch's embedding is one
  of the same image, any other position being as likely.

  Attributes:
    length: L.
    count: corrupted patches of each image.
    mask_share: of those, how many get the mask embedding, in expectation.
    other_share: and how many another patch's; the rest stays as it is.
  """

  length: int
  count: int
  mask_share: float
  other_share: float

  def draw(self, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Corrupts images.

    Args:
      keys: uint32 [B, 2], see `image_keys`.

    Returns:
      corrupted: bool [B, L], `count` of each row.
      source: int32 [B, L], whose embedding each patch gets: its own position's,
        another's, or MASK.
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
  """The key that the corruption of a run's training images follows from."""
  return jax.random.fold_in(jax.random.key(seed, impl=_RNG), 3)


def image_keys(key: jax.Array, rows: jax.Array) -> jax.Array:
  """A key for each image, as numbers, to travel with a batch.

  Args:
    key: of the batch, or of the data set.
    rows: int32 [B], the images' places in it.

  Returns:
    uint32 [B, 2].
  """
  return jax.random.key_data(
    jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows)
  )
