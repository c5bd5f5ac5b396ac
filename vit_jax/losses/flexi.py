"""FlexiViT: each step trains at another size of patches (arXiv:2212.08013).

A model with `kernel_size` has the same parameters at all sizes. A step draws
one of `flexi.patch_sizes` uniformly, and is one compiled program with a branch
for each size. Evaluations use `model.patch_size`.

Differs from the authors' code (big_vision, trainers/proj/flexi), which draws
the number of patches along a side, with weights, on the host, and compiles a
program for each.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections

from vit_jax.losses.objective import MeanLoss, PrepareBatch
from vit_jax.models import position

# The entry of a batch with the index of the drawn size, int32 [B], all equal.
DRAWN = 'patch_size_index'
# These need no `position_grid`: they learn nothing that is added to patches.
_ANY_GRID = ('none', *position.FIXED)


def wrap(
  config: ml_collections.ConfigDict, make: Callable[[nn.Module], MeanLoss]
) -> Callable[[nn.Module], MeanLoss]:
  """Returns `make`, or if patch sizes are drawn, what makes a loss of all.

  Args:
    config: complete. Its objective's `prepare_batch` goes through `with_draw`.
    make: returns the mean loss of a model, of which it gets a variant for each
      patch size. The losses must have the same metrics.

  Returns:
    A function of the model, which raises ValueError if the model or the images
    do not suit the patch sizes. The loss that it returns has the further metric
    `patch_size`, the side that was drawn. Its metrics have no gradient.
  """
  sides = config.flexi.patch_sizes
  if not sides:
    return make

  def make_all(model):
    _check(config, model)
    variants = [model.clone(patch_size=(side, side)) for side in sides]
    loss = _one_of(list(map(make, variants)))

    def with_metric(params, batch, key):
      mean, metrics = loss(params, batch, key)
      side = jnp.float32(sides)[batch[DRAWN][0]]
      return mean, metrics | {'patch_size': side}

    return with_metric

  return make_all


def _one_of(losses: list[MeanLoss]) -> MeanLoss:
  """Returns the loss that the batch's draw chooses.

  Its gradient is computed with it, in the same branch. Otherwise JAX would keep
  what the backward passes of all branches need.
  """

  @jax.custom_vjp
  def chosen(params, batch, key):
    return jax.lax.switch(batch[DRAWN][0], losses, params, batch, key)

  def forward(params, batch, key):
    branches = [jax.value_and_grad(loss, has_aux=True) for loss in losses]
    return jax.lax.switch(batch[DRAWN][0], branches, params, batch, key)

  def backward(grads, cotangents):
    loss, _ = cotangents
    return jax.tree.map(lambda g: loss * g, grads), None, None

  chosen.defvjp(forward, backward)
  return chosen


def with_draw(
  config: ml_collections.ConfigDict, prepare_batch: PrepareBatch | None
) -> PrepareBatch | None:
  """Returns `prepare_batch`, or if patch sizes are drawn, one that draws, too.

  The draw is a function of (seed, step), the same for all rows, micro-batches
  and devices.
  """
  sides = config.flexi.patch_sizes
  if not sides:
    return prepare_batch
  key = jax.random.fold_in(jax.random.key(config.seed), 4)

  def draw(batch, step):
    if prepare_batch is not None:
      batch = prepare_batch(batch, step)
    step_key, count = jax.random.fold_in(key, step), len(sides)
    index = jax.random.randint(step_key, (), 0, count)
    return batch | {DRAWN: jnp.broadcast_to(index, batch['label'].shape[:1])}

  return draw


def _check(config: ml_collections.ConfigDict, model: nn.Module) -> None:
  kernel, grid, kind = (
    getattr(model, name, None)
    for name in ('kernel_size', 'position_grid', 'position_embedding')
  )
  if kernel is None or (grid is None and kind not in _ANY_GRID):
    raise ValueError(
      f'flexi.patch_sizes={config.flexi.patch_sizes} needs a ViT whose kernel'
      ' and positions are resized: set model.kernel_size and, with'
      ' position_embedding="1d" or "2d", model.position_grid; in FlexiViT they'
      f' are (32, 32) and (7, 7), here {kernel} and {grid} with {kind!r}.'
    )
  for side in config.flexi.patch_sizes:  # Raises if images are smaller.
    model.clone(patch_size=(side, side)).token_grid(tuple(config.image_size))
