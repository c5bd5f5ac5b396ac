"""The exported program: from the pixels of images to logits.

Axes: B images, K classes.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vit_jax.loaded import Loaded
from vit_jax.models import resnet
from vit_jax.models.shared import normalize

DTYPES = ('float32', 'bfloat16')
# FlatBuffers and Protocol Buffers have offsets of 31 bits.
_LARGEST = 2**31 - 2**24


@dataclasses.dataclass(frozen=True, eq=False)  # Its identity is its hash.
class Program:
  """A model with its weights, as a function of images alone.

  Attributes:
    loaded: the model, its weights, and how its images are prepared.
    dtype: the compute dtype, one of DTYPES.
  """

  loaded: Loaded
  dtype: str = 'float32'

  def __post_init__(self):
    if not self.loaded.has_head:
      raise ValueError(
        f'{self.loaded.origin} has no head, so it predicts no classes: only'
        ' models with a head are exported. Fine-tuning gives it one.'
      )

  def check_one_file(self, what: str) -> None:
    """Raises ValueError if such a file cannot hold all weights."""
    size = sum(x.nbytes for x in jax.tree.leaves(self.loaded.params))
    if size > _LARGEST:
      raise ValueError(
        f'{self.loaded.name} has {size / 2**30:.1f} GiB of weights, and {what}'
        ' holds less than 2 GiB. Export other forms, such as'
        ' --forms=huggingface,timm.'
      )

  @property
  def module(self) -> nn.Module:
    """The model with the attention that runs on every platform."""
    model, dtype = self.loaded.model, jnp.dtype(self.dtype)
    if hasattr(model, 'attention_implementation'):
      model = model.clone(attention_implementation='plain')
    return model.clone(dtype=dtype)

  @property
  def takes_any_size(self) -> bool:
    """Whether images may have any height and width.

    A ResNet takes all sizes. Position embeddings are made for one.
    """
    return isinstance(self.loaded.model, resnet.BiT)

  @property
  def input_shape(self) -> tuple[int | str, ...]:
    """The shape of the images; a letter stands for any size."""
    size = ('h', 'w') if self.takes_any_size else self.loaded.image_size
    return ('b', *size, self.loaded.channels)

  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps uint8 [B, height, width, channels] to logits, float32 [B, K]."""
    return self.apply(self.loaded.params, images)

  def apply(self, params: Any, images: jax.Array) -> jax.Array:
    """Does the same with the weights as an argument."""
    # By default, TPUs and GPUs would multiply float32 numbers with fewer bits.
    exact = 'highest' if self.dtype == 'float32' else None
    with jax.default_matmul_precision(exact):
      variables = {'params': params}
      return self.module.apply(variables, normalize(images), train=False)[0]
