"""Maps of features: one vector for each place of an image.

Axes: N images, h and w places, D width of the last layer.
"""

import functools

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.loaded import Loaded
from vit_jax.models.shared import normalize
from vit_jax.models.vit import ViT
from vit_jax.paper.inside import weights


def of_images(
  run: Loaded, images: jax.Array, stage: int | None = None
) -> jax.Array:
  """Returns the last map of features before pooling.

  Args:
    run: a ViT, a hybrid or a ResNet.
    images: float [N, H, W, C] in [-1, 1].
    stage: of a ResNet, from 1; None is the last one.

  Returns:
    float32 [N, h, w, D]: tokens of patches, or the map of a stage.
  """
  model = run.model
  if isinstance(model, ViT):
    out = model.apply({'params': run.params}, images, train=False)[1]
    rows, columns = model.token_grid(images.shape[1:3])
    tokens = out['encoded'][:, -rows * columns :]
    return tokens.reshape(len(images), rows, columns, -1).astype(jnp.float32)
  name = f'block{stage or len(model.blocks)}'
  _, state = model.apply(
    {'params': run.params},
    images,
    train=False,
    capture_intermediates=lambda module, _: module.name == name,
    mutable=['intermediates'],
  )
  found = flax.traverse_util.flatten_dict(state['intermediates'])
  [[map_]] = [out for path, out in found.items() if path[-2] == name]
  return map_.astype(jnp.float32)


def receptive_field(workdir: str, stage: int | None, count: int = 16) -> float:
  """Returns how far from a place its features see, in px.

  It is the mean distance of pixels from the middle place, weighted by the
  absolute gradient of this place's features: the effective receptive field of
  arXiv:1701.04128. Attention distance is the same with attention as weights.

  Args:
    workdir: of a run.
    stage: see `of_images`.
    count: number of held-out images.
  """
  run, images = _shown(workdir, count)

  @jax.jit
  def gradient(images: jax.Array) -> jax.Array:
    def middle(images):
      maps = of_images(run, images, stage)
      rows, columns = maps.shape[1:3]
      return maps[:, rows // 2, columns // 2].sum()

    return jnp.abs(jax.grad(middle)(images)).sum(axis=(0, 3))

  found = np.asarray(gradient(images), np.float64)
  rows, columns = np.indices(found.shape)
  # The middle of the place, as the gradient itself has it.
  total = found.sum()
  middle = (found * rows).sum() / total, (found * columns).sum() / total
  distance = np.hypot(rows - middle[0], columns - middle[1])
  return float((found * distance).sum() / total)


def moved(workdir: str, patch: int, count: int = 128) -> tuple[float, float]:
  """Returns how much features change as images shift, in percent.

  Images are rolled by a place of the map, once in each direction. Features that
  are equivariant move with the image; the borders, which see the roll, do not
  count. The change is the mean distance of unit vectors, by that of features of
  different images.

  Args:
    workdir: of a run.
    patch: pixels of a place: 4, 8, 16 or 32. A ResNet's features are those of
      the stage with such places.
    count: number of held-out images.

  Returns:
    The change of features that moved along, and of features that did not.
  """
  run, images = _shown(workdir, count)
  # The first stage has places of 4 px, each further one doubles them.
  stage = patch.bit_length() - 2
  maps = jax.jit(functools.partial(of_images, run, stage=stage))
  before = _units(maps(images))
  changes, kept = [], []
  for axis in (1, 2):
    for sign in (1, -1):
      after = _units(maps(jnp.roll(images, sign * patch, axis)))
      back = jnp.roll(after, -sign, axis)
      inner = np.s_[:, 1:-1, 1:-1]
      changes.append(_distance(back[inner], before[inner]))
      kept.append(_distance(after[inner], before[inner]))
  other = _distance(before, jnp.roll(before, 1, 0))
  return (
    100 * float(np.mean(changes) / other),
    100 * float(np.mean(kept) / other),
  )


def _units(x: jax.Array) -> jax.Array:
  x = x - x.mean(axis=(0, 1, 2))
  return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)


def _distance(one: jax.Array, other: jax.Array) -> float:
  return float(jnp.linalg.norm(one - other, axis=-1).mean())


def _shown(workdir: str, count: int) -> tuple[Loaded, jax.Array]:
  run = weights.load(workdir)
  images, _ = weights.held_out_images(workdir, count)
  return run, normalize(jnp.asarray(images))
