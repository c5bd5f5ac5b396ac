"""The Vision Transformer and its hybrids (arXiv:2010.11929, §3.1).

Modules and parameters carry the names of the released checkpoints, so that
checkpoints map one to one. The ablations of appendix D are attributes.

Axes: B batch, L tokens, D width. Images are [B, height, width, channels].
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from absl import logging

from vit_jax.models import attention, encoder, position, resnet
from vit_jax.models.encoder import MlpBlock
from vit_jax.models.model_options import Options, options_of
from vit_jax.models.shared import check_images, classify

# The value in `source` that selects the mask embedding instead of a patch.
MASK = -1


def cut_patches(images: jax.Array, patch_size: tuple[int, int]) -> jax.Array:
  """Cuts images [B, height, width, C] into patches, row by row.

  It drops what is beyond the last whole patch on the right and at the bottom.

  Returns:
    [B, L, high * wide * C], for patches of (high, wide).
  """
  batch, height, width, channels = images.shape
  high, wide = patch_size
  rows, columns = position.token_grid((height, width), patch_size)
  if (rows * high, columns * wide) != (height, width):
    logging.log_first_n(
      logging.WARNING,
      'Size %dx%d (of the image in px, or of the feature map) is not a multiple'
      ' of the patch size %dx%d: the remainder on the right and at the bottom'
      ' is dropped.',
      1,
      *(height, width, *patch_size),
    )
  x = images[:, : rows * high, : columns * wide]
  x = x.reshape(batch, rows, high, columns, wide, channels)
  x = x.transpose(0, 1, 3, 2, 4, 5)
  return x.reshape(batch, rows * columns, -1)


class PatchEmbedding(nn.Module):
  """Cuts images into patches and projects each to a token (Eq. 1).

  Equals a VALID convolution whose stride is its kernel's size. A reshape and a
  matmul are faster than the convolution on TPU.

  Attributes:
    width: D.
    patch_size: (height, width) of a patch in pixels, or in positions of a
      feature map (§3.1, "Hybrid Architecture"; (1, 1) in the paper).
    dtype: compute dtype; parameters are float32.
  """

  width: int
  patch_size: tuple[int, int]
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps [B, height, width, channels] to tokens [B, L, D], row by row."""
    kernel = self.param(
      'kernel',
      nn.initializers.lecun_normal(),  # Fan in: high * wide * channels.
      (*self.patch_size, images.shape[-1], self.width),
    )
    bias = self.param('bias', nn.initializers.zeros, (self.width,))
    images, kernel, bias = (
      jnp.asarray(a, self.dtype) for a in (images, kernel, bias)
    )
    x = cut_patches(images, self.patch_size)
    return x @ kernel.reshape(-1, self.width) + bias[None, None]  # [B, L, D]


def replace_embeddings(
  embeddings: jax.Array, source: jax.Array, mask_embedding: jax.Array
) -> jax.Array:
  """Replaces embeddings of patches by others, or by the mask's (B.1.2).

  Args:
    embeddings: [B, L, D].
    source: int32 [B, L], the index of the patch of the same image whose
      embedding each patch gets, or MASK.
    mask_embedding: [D].

  Returns:
    [B, L, D] in the embeddings' dtype.
  """
  masked = (source == MASK)[..., None]  # [B, L, 1]
  index = jnp.maximum(source, 0)[..., None]
  taken = jnp.take_along_axis(embeddings, index, axis=1)
  return jnp.where(masked, mask_embedding.astype(embeddings.dtype), taken)


class MAPHead(nn.Module):
  """Pools tokens by attention from a learned query (not in the paper).

  This is multi-head attention pooling (Set Transformer, arXiv:1810.00825, §3.2)
  as in "Scaling Vision Transformers" (arXiv:2106.04560), with the parameter
  names of that paper's public code.

  Attributes:
    options: of the model. Those for large models are for its blocks alone.
  """

  options: Options

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    """Maps [B, L, D] to [B, D]."""
    batch, _, width = tokens.shape
    probe = self.param('probe', nn.initializers.xavier_uniform(), (1, 1, width))
    options = dataclasses.replace(
      self.options,
      attention_implementation='plain',
      position_embedding='none',
      qk_norm=False,
      qkv_bias=True,
      mlp='gelu',
      rotary=None,
    )
    probe = jnp.broadcast_to(probe.astype(options.dtype), (batch, 1, width))
    x = attention.MultiHeadDotProductAttention(
      options, name='MultiHeadDotProductAttention_0'
    )(probe, attended=tokens)
    y = nn.LayerNorm(
      epsilon=options.norm_epsilon, dtype=options.dtype, name='LayerNorm_0'
    )(x)
    y = MlpBlock(options, name='MlpBlock_0')(y, train=False)
    return (x + y)[:, 0]


def pool(
  model: nn.Module, tokens: jax.Array, head: Callable[[jax.Array], jax.Array]
) -> jax.Array:
  """Maps tokens [B, L, D] to [B, D] as a ViT pools; `head` pools for 'map'."""
  if model.pooling == 'token':
    return tokens[:, 0]
  if model.pooling == 'gap':
    return tokens.mean(axis=1)
  return head(tokens)


class ViT(Options, nn.Module, kw_only=True):
  """The Vision Transformer, classifier included (arXiv:2010.11929, §3.1).

  Make one with `vit_jax.models.build`, which checks these attributes.

  Attributes:
    Those of `model_options.Options`, and
    num_classes: number of logits.
    width: D, the size of a token.
    patch_size: (height, width) of a patch, in pixels; in a hybrid, in positions
      of the ResNet's feature map.
    resnet_blocks: units of each stage of a hybrid's ResNet, such as (3, 4, 9);
      () is a ResNet's root only. None makes the model a ViT without a ResNet.
    resnet_width: width factor of that ResNet, a multiple of 1/32.
    representation_size: size of the tanh layer before the head, the paper's
      pre-training head; None leaves it out, as in fine-tuning.
    pooling: 'token' adds a class token. The others have none: 'gap' is the mean
      over the patch tokens (§D.3), 'map' is attention pooling.
    head_bias: initial value of the head's bias. The head's kernel starts at 0.
    patch_outputs: how many numbers to predict for each patch, in place of the
      classifier (masked patch prediction, B.1.2); `losses.masked_patch` sets
      it.
  """

  num_classes: int
  width: int
  patch_size: tuple[int, int]
  resnet_blocks: tuple[int, ...] | None = None
  resnet_width: float = 1
  representation_size: int | None = None
  pooling: str = 'token'
  head_bias: float = 0.0
  patch_outputs: int | None = None

  def token_grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
    """Returns the (rows, columns) of the patch tokens of an image.

    Args:
      image_size: (height, width) in pixels.

    Raises:
      ValueError: the image is smaller than one patch.
    """
    if self.resnet_blocks is None:
      return position.token_grid(image_size, self.patch_size)
    features = resnet.feature_grid(image_size, self.resnet_blocks)
    return position.token_grid(features, self.patch_size, what='feature map')

  @nn.compact
  def __call__(
    self,
    images: jax.Array,
    *,
    train: bool = False,
    source: jax.Array | None = None,
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Classifies images.

    Args:
      images: [B, height, width, channels], float in [-1, 1].
      train: turns dropout and stochastic depth on, which take the random
        stream 'dropout' unless their rates are 0.
      source: the patch whose embedding each patch gets, see
        `replace_embeddings`; only for models with `patch_outputs`. None leaves
        each patch its own embedding.

    Returns:
      logits: [B, num_classes], float32; a model with `patch_outputs` returns
        [B, rows * columns, patch_outputs].
      out: `embedded` [B, L, D], the first block's input; `encoded` [B, L, D],
        after the last LayerNorm; `pre_logits` [B, D or representation_size],
        the head's input; in a hybrid also `features` [B, height, width,
        channels], the ResNet's output. All are in the compute dtype.

    Raises:
      ValueError: the images are not float, are not of rank 4, or are smaller
        than one patch.
      flax.errors.ScopeParamShapeError: the parameters' position embedding is
        for images of another size; `position.resize` adapts it.
    """
    check_images(images)
    grid = self.token_grid(images.shape[1:3])
    features = {}
    x = images
    if self.resnet_blocks is not None:
      x = resnet.backbone(
        images,
        blocks=self.resnet_blocks,
        width_factor=self.resnet_width,
        dtype=self.dtype,
        remat=self.remat,
      )
      features['features'] = x
    x = PatchEmbedding(
      self.width, self.patch_size, dtype=self.dtype, name='embedding'
    )(x)
    if self.patch_outputs is not None:
      mask = self.param('mask_embedding', nn.initializers.zeros, (self.width,))
      if source is not None:  # Before positions are added: patches keep theirs.
        x = replace_embeddings(x, source, mask)
    elif source is not None:
      raise ValueError(
        'source is only for models with patch_outputs, but this model'
        ' classifies: build it with losses.masked_patch.build.'
      )
    if self.pooling == 'token':
      cls = self.param('cls', nn.initializers.zeros, (1, 1, self.width))
      cls = jnp.broadcast_to(cls, (images.shape[0], 1, self.width))
      x = jnp.concatenate([cls.astype(x.dtype), x], axis=1)  # [B, L, D]
    out = features | encoder.Encoder(options_of(self), name='Transformer')(
      x, grid=grid, train=train
    )
    head = MAPHead(options_of(self), name='MAPHead_0')
    x = pool(self, out['encoded'], head)
    if self.representation_size is not None:
      x = nn.Dense(
        self.representation_size, dtype=self.dtype, name='pre_logits'
      )(x)
      x = jnp.tanh(x)
    out['pre_logits'] = x
    if self.patch_outputs is not None:
      # It multiplies in the model's dtype, because it runs on every patch, but
      # sums and returns float32.
      head = nn.Dense(
        self.patch_outputs,
        kernel_init=nn.initializers.zeros,
        dtype=self.dtype,
        dot_general=functools.partial(
          jax.lax.dot_general, preferred_element_type=jnp.float32
        ),
        name='patch_head',
      )
      return head(out['encoded'][:, -math.prod(grid) :]), out
    logits = classify(x, num_classes=self.num_classes, head_bias=self.head_bias)
    return logits, out
