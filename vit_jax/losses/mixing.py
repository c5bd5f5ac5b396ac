"""Mixup and CutMix: training on blends of two images and their labels.

Mixup (arXiv:1710.09412) averages two images. It is part of BiT's fine-tuning
setup, in which the paper also runs its ResNets (B.1.1). CutMix
(arXiv:1905.04899) replaces a box of an image with that of another. AugReg
pre-trains with mixup, DeiT with both, in turns. As in their codes, all images
of a batch are blended in the same proportion, and with the same box, unless
`mix_by` says otherwise: as in timm's `Mixup` (timm/data/mixup.py), pairs of
images, or each image, then have a proportion, a box and a choice of mixup or
CutMix of their own.

Differs from BiT's code and timm's: there, the partner of image i comes from the
other end of the batch, B - 1 - i. Here, it is image i - 1, so that on a mesh
each device receives only one image. So two images of a pair are not each
other's partners: rows 2k and 2k + 1 are blended alike, the latter with the
former, but the former with row 2k - 1. Every single blend is distributed as
timm's.

Axes: `B` batch, `H` and `W` the rows and columns of an image.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_collections
from jax.sharding import PartitionSpec as P

from vit_jax import sharding
from vit_jax.losses.objective import Batch, PrepareBatch
from vit_jax.models.shared import normalize


def make_prepare_batch(
  config: ml_collections.ConfigDict, layout: sharding.Layout
) -> PrepareBatch | None:
  """Returns a function that adds a partner to each image of a batch.

  The loss blends the two, see `blended_images`. The function adds
  `share`, float32 [B], the proportion of `image`, and `partner_image` and
  `partner_label`, which have the proportion 1 - `share`. With CutMix also
  `box`, int32 [B, 4], the rows and columns (top, left, bottom, right) that are
  the partner's, and `outside`, float32 [B], the proportion of `image` outside
  of the box. Rows have the same values as far as `mix_by` says.

  Args:
    config: complete; its seed, and its keys of mixup and CutMix.
    layout: how the batch is split.

  Returns:
    The function; None if both alphas are 0, as nothing is blended then.
  """
  alphas = config.mixup_alpha, config.cutmix_alpha
  if not any(alphas):
    return None
  key = jax.random.fold_in(jax.random.key(config.seed), 2)

  def prepare_batch(batch, step):
    drawn = draw_rows(
      config.mix_by,
      len(batch['label']),
      jax.random.fold_in(key, step),
      batch['image'].shape[1:3],
      *alphas,
      config.cutmix_share,
    )
    if config.mix_by != 'batch':
      # Each device draws for all rows. If they shared the draws, they would
      # have to agree after each try of the rejection sampling.
      drawn = jax.lax.with_sharding_constraint(drawn, layout.whole)
    return batch | {
      **drawn,
      'partner_image': _shift(batch['image'], layout.mesh),
      'partner_label': _shift(batch['label'], layout.mesh),
    }

  return prepare_batch


def draw_rows(
  by: str, rows: int, key: jax.Array, *arguments
) -> dict[str, jax.Array]:
  """Returns `share`, `box` and `outside` of all rows of a step.

  Args:
    by: which rows have the same: those of the 'batch'; 'pair', rows 2k and
      2k + 1; or 'element', none.
    rows: B.
    key: the random key of the step.
    *arguments: those of `draw` after the key.
  """
  if by == 'batch':
    drawn = draw(key, *arguments)
    return {k: jnp.broadcast_to(x, (rows, *x.shape)) for k, x in drawn.items()}
  alike = {'pair': 2, 'element': 1}[by]
  keys = jax.random.split(key, -(-rows // alike))
  drawn = jax.vmap(lambda key: draw(key, *arguments))(keys)
  return {k: jnp.repeat(x, alike, axis=0)[:rows] for k, x in drawn.items()}


def draw(
  key: jax.Array,
  size: tuple[int, int],
  alpha: float,
  cutmix_alpha: float,
  cutmix_share: float,
) -> dict[str, jax.Array]:
  """Returns `share`, `box` and `outside` of a blend, without the axis B.

  Args:
    key: the random key of the blend.
    size: (H, W).
    alpha: mixup's proportion is drawn from Beta(alpha, alpha); 0: no mixup.
    cutmix_alpha: the same for CutMix; one of the two must be above 0.
    cutmix_share: the probability of CutMix, if both are above 0.
  """
  mixed = cut = None
  if alpha:
    share = jax.random.beta(key, alpha, alpha, dtype=jnp.float32)
    mixed = {'share': share}
  if cutmix_alpha:
    box = draw_box(jax.random.fold_in(key, 1), size, cutmix_alpha)
    area = (box[2] - box[0]) * (box[3] - box[1])
    # The box's exact area: a part of it may have been outside of the image.
    share = 1 - area.astype(jnp.float32) / math.prod(size)
    cut = {'share': share, 'outside': jnp.ones_like(share), 'box': box}
  if not (mixed and cut):
    return mixed or cut
  mixed |= {'outside': mixed['share'], 'box': jnp.zeros_like(box)}
  cuts = jax.random.bernoulli(jax.random.fold_in(key, 2), cutmix_share)
  return jax.tree.map(lambda a, b: jnp.where(cuts, a, b), cut, mixed)


def draw_box(key: jax.Array, size: tuple[int, int], alpha: float) -> jax.Array:
  """Draws a box of CutMix.

  Its sides are sqrt(1 - r) times the image's, rounded down, with r from
  Beta(alpha, alpha). Its centre is uniform in the image, and parts outside of
  the image are cut off (Eq. 2, arXiv:1905.04899).

  Args:
    key: the random key.
    size: (H, W).
    alpha: see above.

  Returns:
    int32 [4]: top, left, bottom, right; the latter two are exclusive.
  """
  ratio_key, *centre_keys = jax.random.split(key, 3)
  ratio = jax.random.beta(ratio_key, alpha, alpha, dtype=jnp.float32)
  starts, ends = [], []
  for centre_key, side in zip(centre_keys, size, strict=True):
    length = (side * jnp.sqrt(1 - ratio)).astype(jnp.int32)
    start = jax.random.randint(centre_key, (), 0, side) - length // 2
    starts.append(jnp.clip(start, 0, side))
    ends.append(jnp.clip(start + length, 0, side))
  return jnp.stack(starts + ends)


def _shift(x: jax.Array, mesh: jax.sharding.Mesh) -> jax.Array:
  """Returns `jnp.roll(x, 1, axis=0)`, whose row i is row i - 1 of `x`.

  The devices exchange rows explicitly. For `jnp.roll`, the compiler would
  gather the whole batch on every device.
  """
  parts = math.prod(mesh.shape[axis] for axis in sharding.BATCH)

  def on_a_device(rows):
    ring = [(i, (i + 1) % parts) for i in range(parts)]
    before = jax.lax.ppermute(rows[-1:], sharding.BATCH, ring)
    return jnp.concatenate([before, rows[:-1]])

  return jax.shard_map(
    on_a_device,
    mesh=mesh,
    in_specs=P(sharding.BATCH),
    out_specs=P(sharding.BATCH),
  )(x)


def images(batch: Batch) -> jax.Array:
  """Returns what models see, blended or not: float32 [B, H, W, C]."""
  if 'share' in batch:
    return blended_images(batch)
  return normalize(batch['image'])


def blended_images(batch: Batch) -> jax.Array:
  """Returns each image blended with its partner: float32 [B, H, W, C]."""
  share = batch['share'][:, None, None, None]
  if 'box' in batch:
    share = _shares_of_pixels(batch)
  own, partner = map(normalize, (batch['image'], batch['partner_image']))
  return share * own + (1 - share) * partner


def _shares_of_pixels(batch: Batch) -> jax.Array:
  """Returns the proportion of `image` in each pixel: float32 [B, H, W, 1]."""
  top, left, bottom, right = batch['box'].T[..., None]  # Each [B, 1].
  rows, columns = map(jnp.arange, batch['image'].shape[1:3])
  in_rows = (top <= rows) & (rows < bottom)  # [B, H]
  in_columns = (left <= columns) & (columns < right)  # [B, W]
  inside = in_rows[:, :, None] & in_columns[:, None, :]  # [B, H, W]
  outside = batch['outside'][:, None, None]
  return jnp.where(inside, 0, outside)[..., None]


def over_labels(
  f: Callable[[jax.Array], jax.Array], batch: Batch, *, binary: bool = False
) -> jax.Array:
  """Returns the mean of `f` over both labels, weighted by `share`.

  For a loss that is linear in its targets, as all in `classification` are, this
  is the loss of the blended targets.

  Args:
    f: maps labels, int32 [B] or [B, M] padded with -1, to [B].
    batch: see `make_prepare_batch`; without partners, nothing is weighted.
    binary: whether a blend is an image that has the labels of both instead,
      but for an image whose proportion is 0.

  Returns:
    [B].
  """
  if 'share' not in batch:  # Nothing is blended.
    return f(batch['label'])
  share, own, partner = (batch[k] for k in ('share', 'label', 'partner_label'))
  if not binary:
    return share * f(own) + (1 - share) * f(partner)
  parts = ((share, own), (1 - share, partner))
  seen = [
    jnp.where(part[:, None] > 0, labels.reshape(len(labels), -1), -1)
    for part, labels in parts
  ]  # Each [B, M].
  return f(jnp.concatenate(seen, axis=1))
