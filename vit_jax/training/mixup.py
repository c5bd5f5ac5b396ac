"""Mixup (arXiv:1710.09412): training on blends of two images and their labels.

Mixup is part of BiT's fine-tuning setup, in which the paper also runs its
ResNets (B.1.1). As in BiT's public code, all images of a batch are blended in
the same proportion. In that code, the partner of image i comes from the other
end of the batch. Here, the partner is image i - 1, so that on a mesh each
device receives only one image.

Axes: `B` batch.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from vit_jax import sharding
from vit_jax.models.images import normalize

Batch = dict[str, jax.Array]


def mixup_key(seed: int) -> jax.Array:
  """Returns the key from which the proportions of a run are drawn."""
  return jax.random.fold_in(jax.random.key(seed), 2)


def each_step(
  seed: int, alpha: float, layout: sharding.Layout | None = None
) -> Callable[[Batch, jax.Array], Batch]:
  """Returns `(batch, step) -> batch`, which is `pair` with the step's key."""
  key = mixup_key(seed)

  def prepare(batch, step):
    return pair(batch, jax.random.fold_in(key, step), alpha, layout)

  return prepare


def pair(
  batch: Batch,
  key: jax.Array,
  alpha: float,
  layout: sharding.Layout | None = None,
) -> Batch:
  """Adds the partner of each image to a batch; `images` blends the two.

  Args:
    batch: the global batch, see `data.pipeline`.
    key: the key of this step.
    alpha: the proportion is drawn from Beta(alpha, alpha).
    layout: how the batch is split; None for one device.

  Returns:
    The batch with `share`, float32 [B], the proportion of `image`, and with
    `partner_image` and `partner_label`, which have the proportion 1 - `share`.
  """
  share = jax.random.beta(key, alpha, alpha, dtype=jnp.float32)
  return batch | {
    'share': jnp.broadcast_to(share, batch['label'].shape[:1]),
    'partner_image': _shift(batch['image'], layout),
    'partner_label': _shift(batch['label'], layout),
  }


def _shift(x: jax.Array, layout: sharding.Layout | None) -> jax.Array:
  """Returns `jnp.roll(x, 1, axis=0)`, whose row i is row i - 1 of `x`.

  The devices exchange rows explicitly. For `jnp.roll`, the compiler would
  gather the whole batch on every device.
  """
  if layout is None:
    return jnp.roll(x, 1, axis=0)
  parts = math.prod(layout.mesh.shape[axis] for axis in sharding.BATCH)

  def on_a_device(rows):
    ring = [(i, (i + 1) % parts) for i in range(parts)]
    before = jax.lax.ppermute(rows[-1:], sharding.BATCH, ring)
    return jnp.concatenate([before, rows[:-1]])

  return jax.shard_map(
    on_a_device,
    mesh=layout.mesh,
    in_specs=P(sharding.BATCH),
    out_specs=P(sharding.BATCH),
  )(x)


def images(batch: Batch) -> jax.Array:
  """Returns the model's input images, float32 [B, H, W, C] in [-1, 1]."""
  own = normalize(batch['image'])
  if 'share' not in batch:
    return own
  share = batch['share'][:, None, None, None]
  return share * own + (1 - share) * normalize(batch['partner_image'])


def over_labels(f: Callable[[jax.Array], jax.Array], batch: Batch) -> jax.Array:
  """Returns the mean of `f` over both labels, weighted by `share`.

  For a loss that is linear in its targets, as all in `losses` are, this is the
  loss of the blended targets.

  Args:
    f: maps labels, as they are in the batch, to [B].
    batch: see `pair`; without `share`, nothing is blended.

  Returns:
    [B].
  """
  own = f(batch['label'])
  if 'share' not in batch:
    return own
  share = batch['share']
  return share * own + (1 - share) * f(batch['partner_label'])
