"""Flags of the commands that read a trained model: predict, inspect and so on.

A command makes them its own with `flags.adopt_module_key_flags(model_flags)`.
"""

from typing import Any

from absl import flags

from vit_jax.data import ops
from vit_jax.runtime import command_line

CHECKPOINT = flags.DEFINE_string(
  'checkpoint', None, 'Weights of a trained model: a path, or a released name.'
)
_IMAGE_SIZE = flags.DEFINE_string(
  'image_size',
  None,
  "Image size in pixels, as 384 or HEIGHTxWIDTH; by default the checkpoint's."
  ' Position embeddings are resized to it.',
)
_PREPROCESS = flags.DEFINE_string(
  'preprocess',
  None,
  'Operations on each image, as in vit_jax/data/ops; by default those of the'
  " checkpoint's evaluation, or resize if it names none.",
)
_MAX_PIXELS = flags.DEFINE_integer(
  'max_pixels',
  ops.MAX_PIXELS,
  'Most pixels that an image may have; a larger one counts as unreadable.',
  lower_bound=1,
)


def arguments() -> dict[str, Any]:
  """Returns the flags' values as keyword arguments of `subject.load`."""
  return dict(
    image_size=command_line.parse_size('image_size', _IMAGE_SIZE.value),
    preprocess=_PREPROCESS.value,
    max_pixels=_MAX_PIXELS.value,
  )
