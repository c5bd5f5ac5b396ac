"""The shapes of a model's parameters, and a check of given ones."""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import checkpoint as checkpoint_lib
from vit_jax.interop import arrays as arrays_lib
from vit_jax.interop import inference, released

# Prefixes of a classifier's parameters, and of those that only masked patch
# prediction has.
HEADS = ('head/', 'pre_logits/')
MASKED_PATCH = ('mask_embedding', 'patch_head/')
# Arrays whose length depends on the image size -> the axis of the length.
TABLES = {
  'pos_embedding': 1,
  'x_embedding': 0,
  'y_embedding': 0,
  'relative_embedding': 0,
}


def initial(
  model: nn.Module, image_size: tuple[int, int], channels: int, *, head: bool
) -> dict[str, Any]:
  """Returns the shapes of a model's parameters, and values for a new head.

  Args:
    model: from `models.build`.
    image_size: (height, width) in pixels.
    channels: channels of the images.
    head: whether the parameters of HEADS and MASKED_PATCH are arrays with
      initial values, which are the same at each call.

  Returns:
    Flat name -> `jax.ShapeDtypeStruct`, or array.
  """

  def fresh_head():
    params = _init(model, image_size, channels)
    # jit does not compute what is not returned.
    return {
      k: v for k, v in params.items() if k.startswith((*HEADS, *MASKED_PATCH))
    }

  shapes = _initial_shapes(model, image_size, channels)
  return shapes | (jax.device_get(jax.jit(fresh_head)()) if head else {})


@functools.lru_cache(maxsize=2)  # Tracing a large model takes seconds.
def _initial_shapes(model, image_size, channels) -> dict[str, Any]:
  return jax.eval_shape(lambda: _init(model, image_size, channels))


def _init(model, image_size, channels) -> dict[str, Any]:
  images = jnp.zeros((1, *image_size, channels))
  params = model.init(jax.random.key(0), images, train=False)['params']
  return flax.traverse_util.flatten_dict(params, sep='/')


def placeholder(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
  """Returns zeros of a shape that take no memory."""
  return np.broadcast_to(np.zeros((), dtype), shape)


def of(flat: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
  """Returns name -> shape."""
  return {k: tuple(v.shape) for k, v in flat.items()}


def without_structs(params: Any) -> dict[str, Any]:
  """Returns flat parameters, blocks not stacked, structs as placeholders."""
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  return released.unstack(
    {
      k: placeholder(v.shape, v.dtype)
      if isinstance(v, jax.ShapeDtypeStruct)
      else v
      for k, v in flat.items()
    }
  )


def check_params(
  flat: Mapping[str, np.ndarray],
  model: nn.Module,
  image_size: tuple[int, int] | None,
) -> None:
  """Checks that parameters fit a model, before they are written.

  Args:
    flat: name -> array, blocks not stacked.
    model: from `models.build`.
    image_size: (height, width) that the position embeddings are for; None
      leaves their lengths unchecked.

  Raises:
    ValueError: arrays are missing, extra, of the wrong shape or not finite.
  """
  size = image_size or _some_image_size(model)
  target = without_structs(
    initial(model, size, inference.channels(flat), head=False)
  )
  expected, found = of(target), of(flat)
  for name in expected.keys() & found.keys():
    axis = TABLES.get(name.rpartition('/')[2])
    shape = found[name]
    if image_size is None and axis is not None and axis < len(shape):
      rest = expected[name][axis + 1 :]
      expected[name] = (*expected[name][:axis], shape[axis], *rest)
  if difference := checkpoint_lib.mismatch(expected, found):
    raise ValueError(
      'The parameters do not fit the model, so nothing is written.'
      f' Compared with the model:\n{difference}\n'
      "Check the model's number of classes, sizes and options, and the image"
      ' size.'
    )
  arrays_lib.check_finite(flat, 'The model')


def _some_image_size(model: nn.Module) -> tuple[int, int]:
  """Returns a size that gives a few patches, also behind a ResNet."""
  height, width = getattr(model, 'patch_size', (1, 1))
  return 64 * height, 64 * width
