"""Loads a trained model of any kind.

Commands that read a model call `define_flags`, and `load` with `arguments()`.
"""

import dataclasses
from typing import Any

import numpy as np
from absl import flags

from vit_jax import interop
from vit_jax.data import ops
from vit_jax.interop import inference, sources
from vit_jax.runtime import command_line

# The flags are those of the command that defines them.
flags.disclaim_key_flags()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded(interop.Weights):
  """A model with its weights, ready to use.

  Of the attributes of `Weights`, `params` is the tree of parameters. The model,
  its image size and how images are prepared are always known. Classes have
  names only if the head is the checkpoint's.

  Attributes:
    preprocess: maps an image's bytes to uint8 [height, width, channels].
    has_head: whether the logits are those of the checkpoint's head. Otherwise
      the head is new, and its logits mean nothing.
  """

  preprocess: ops.Preprocess
  has_head: bool = False

  @property
  def name(self) -> str:
    """The model's name, for titles."""
    return inference.title(self.model)


def define_flags() -> None:
  """Defines --checkpoint and the flags of `arguments`."""
  flags.DEFINE_string(
    'checkpoint',
    None,
    'Weights of a trained model: a path, or a released name.',
  )
  flags.DEFINE_string(
    'image_size',
    None,
    'Image size in pixels, as 384 or HEIGHTxWIDTH; by default the'
    " checkpoint's. Position embeddings are resized to it.",
  )
  flags.DEFINE_string(
    'preprocess',
    None,
    'Operations on each image, as in vit_jax/data/ops; by default those of the'
    " checkpoint's evaluation, or resize if it names none.",
  )
  flags.DEFINE_integer(
    'max_pixels',
    ops.MAX_PIXELS,
    'Most pixels that an image may have; a larger one counts as unreadable.',
    lower_bound=1,
  )


def arguments() -> dict[str, Any]:
  """Returns the flags' values, without --checkpoint, as arguments of `load`."""
  values = flags.FLAGS
  return dict(
    image_size=command_line.parse_size('image_size', values.image_size),
    preprocess=values.preprocess,
    max_pixels=values.max_pixels,
  )


def load(
  checkpoint: str,
  *,
  image_size: tuple[int, int] | None = None,
  preprocess: str | None = None,
  max_pixels: int = ops.MAX_PIXELS,
) -> Loaded:
  """Reads weights of any kind and finds out which model they belong to.

  The weights need no head.

  Args:
    checkpoint: see `interop.read`.
    image_size: (height, width) in pixels that replaces the checkpoint's;
      position embeddings are resized to it.
    preprocess: operations, see `ops.parse`, that replace the checkpoint's. If
      it has none, images are resized.
    max_pixels: the most pixels of an image, see `ops.parse`.

  Raises:
    ValueError: there are no weights, or they do not fit the model.
  """
  weights = interop.read(checkpoint)
  image_size = image_size or weights.prepared_size
  model, size = sources.model_and_size(weights, image_size=image_size)
  has_head = 'head/bias' in weights.params
  params, report = interop.fit_weights(
    weights, model, size, new_head=not has_head
  )
  operations = preprocess or weights.preprocessing or 'resize'
  prepare = prepared(weights, operations, size, max_pixels)
  changes = dict(
    model=model,
    params=params,
    image_size=size,
    preprocessing=prepare.text,
    prepared_size=None,
    decoding={'upright': prepare.upright, 'jpeg_dct': prepare.jpeg_dct},
    notes=report.notes,
    class_names=weights.class_names if has_head else (),
  )
  return Loaded(
    **vars(weights) | changes, preprocess=prepare, has_head=has_head
  )


def prepared(
  weights: interop.Weights,
  operations: str,
  image_size: tuple[int, int],
  max_pixels: int = ops.MAX_PIXELS,
) -> ops.Preprocess:
  """Parses operations for images of a model.

  Raises:
    ValueError: they are no operations, or they give images of another size.
      Those that a checkpoint records may name the size of its own images.
  """
  # Twice as large, so that every crop fits.
  height, width = image_size
  image = np.zeros((2 * height, 2 * width, weights.channels), np.uint8)
  try:
    preprocess = ops.parse(
      operations,
      image_size=image_size,
      channels=weights.channels,
      # Photographs may carry an orientation in their EXIF data.
      upright=weights.decoding.get('upright', True),
      jpeg_dct=weights.decoding.get('jpeg_dct', 'fast'),
      max_pixels=max_pixels,
    )
    preprocess(image, np.random.default_rng(0))
  except ValueError as error:
    raise ValueError(
      f'{weights.origin}: {error}. Choose operations for this size, such as'
      " preprocess='resize', or another image_size."
    ) from error
  return preprocess
