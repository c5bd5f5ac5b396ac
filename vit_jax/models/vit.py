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

from vit_jax.models import attention, encoder, mae, position, resnet
from vit_jax.models.encoder import MlpBlock
from vit_jax.models.model_options import Options, options_of
from vit_jax.models.patches import MASK as MASK
from vit_jax.models.patches import PatchEmbedding, replace_embeddings
from vit_jax.models.patches import cut_patches as cut_patches
from vit_jax.models.shared import (
  FLOAT32_SUMS,
  check_images,
  classify,
  standardize,
)


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
      key_bias=True,
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
  """Maps tokens [B, L, D] to [B, D] as a ViT pools; `head` pools for 'map'.

  With 'token_gap' it returns [B, 2 D].
  """
  if model.pooling == 'token':
    return tokens[:, 0]
  patches = tokens[:, model.num_prefix_tokens :]
  if model.pooling == 'map':
    return head(patches)
  mean = patches.mean(axis=1)
  if model.pooling == 'token_gap':
    return jnp.concatenate([tokens[:, 0], mean], axis=-1)
  return mean


class ViT(Options, nn.Module, kw_only=True):
  """The Vision Transformer, classifier included (arXiv:2010.11929, §3.1).

  Make one with `vit_jax.models.build`, which checks these attributes.

  Attributes:
    Those of `model_options.Options`, and
    num_classes: number of logits.
    width: D, the size of a token.
    patch_size: (height, width) of a patch, in pixels; in a hybrid, in positions
      of the ResNet's feature map.
    kernel_size: that of the stored kernel of the patches, which is resized at
      each call, as in FlexiViT; None: `patch_size`. With `position_grid`, a
      trained model works at any patch size.
    resnet_blocks: units of each stage of a hybrid's ResNet, such as (3, 4, 9);
      () is a ResNet's root only. None makes the model a ViT without a ResNet.
    resnet_width: width factor of that ResNet, a multiple of 1/32.
    representation_size: size of the tanh layer before the head, the paper's
      pre-training head; None leaves it out, as in fine-tuning.
    pooling: 'token' adds a class token. Others are of the patch tokens: 'gap'
      is their mean (§D.3), 'map' is attention pooling, and 'gap_patches' is the
      mean again, but a class token runs along, as in the fine-tuning of MAE
      (arXiv:2111.06377). 'token_gap' has the class token and that mean, one
      after the other, as the linear head of DINOv2 (arXiv:2304.07193).
    image_mean: of each channel, of images in [0, 1]. The model itself subtracts
      it from its inputs, which stay in [-1, 1], and divides them by
      `image_std`. None: it takes them as they are.
    image_std: the standard deviation of each channel, likewise.
    patch_bias: whether the embedding of patches has a bias.
    distillation_token: whether a second token follows the class token, with a
      second head, for the labels of a teacher (DeiT, arXiv:2012.12877, §4).
    head_bias: initial value of the head's bias.
    head_stddev: of its initial kernel; the paper's starts at 0.
    patch_outputs: how many numbers to predict for each patch, in place of the
      classifier (masked patch prediction, B.1.2); `losses.masked_patch` sets
      this and the next one.
    decoder: sizes of the decoder of a masked autoencoder, which predicts the
      patches; None for a single layer.
  """

  num_classes: int
  width: int
  patch_size: tuple[int, int]
  kernel_size: tuple[int, int] | None = None
  resnet_blocks: tuple[int, ...] | None = None
  resnet_width: float = 1
  representation_size: int | None = None
  pooling: str = 'token'
  image_mean: tuple[float, ...] | None = None
  image_std: tuple[float, ...] | None = None
  patch_bias: bool = True
  distillation_token: bool = False
  head_bias: float = 0.0
  head_stddev: float = 0.0
  patch_outputs: int | None = None
  decoder: mae.Sizes | None = None

  @property
  def prefix(self) -> dict[str, int]:
    """The learned tokens before the patches, in order: name -> how many.

    Registers have no position, as in DINOv2 with registers, DINOv3 and timm's
    `no_embed_class`. In files whose table has rows for them, or has none for
    the class token, the rows are added to the tokens, or are zeros.
    """
    counts = {
      'cls': int(self.pooling in ('token', 'gap_patches', 'token_gap')),
      'dist': int(self.distillation_token),
      'registers': self.registers,
    }
    return {name: count for name, count in counts.items() if count}

  @property
  def num_prefix_tokens(self) -> int:
    """How many tokens come before the patches."""
    return sum(self.prefix.values())

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
        each patch its own embedding. With a decoder, the encoder does not see
        the patches that get the mask's, and L counts the others.

    Returns:
      logits: [B, num_classes], float32; a model with `patch_outputs` returns
        [B, rows * columns, patch_outputs]. With a distillation token, those of
        the class token in training, else the mean of both heads.
      out: `embedded` [B, L, D], the first block's input; `encoded` [B, L, D],
        after the norm of tokens; `pre_logits` [B, D or representation_size],
        the head's input; in a hybrid also `features` [B, height, width,
        channels], the ResNet's output. All are in the compute dtype. With a
        distillation token also `distilled`, like logits, those of its head.

    Raises:
      ValueError: the images are not float, are not of rank 4, or are smaller
        than one patch.
      flax.errors.ScopeParamShapeError: the parameters' position embedding is
        for images of another size; `position.resize` adapts it.
    """
    check_images(images)
    grid = self.token_grid(images.shape[1:3])
    features = {}
    images = standardize(images, self.image_mean, self.image_std)
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
      *(self.width, self.patch_size, self.dtype, self.kernel_size),
      use_bias=self.patch_bias,
      name='embedding',
    )(x)
    hidden = visible = None
    if self.decoder is not None:
      if source is not None:
        hidden = source == MASK
        visible = jnp.argsort(hidden, axis=1)[:, : self.decoder.visible]
    elif self.patch_outputs is not None:
      mask = self.param('mask_embedding', nn.initializers.zeros, (self.width,))
      if source is not None:  # Before positions are added: patches keep theirs.
        x = replace_embeddings(x, source, mask)
    elif source is not None:
      raise ValueError(
        'source is only for models with patch_outputs, but this model'
        ' classifies: build it with losses.masked_patch.build.'
      )
    prefix = []
    for name, count in self.prefix.items():
      # Without positions, equal registers would stay equal: 1e-6 is timm's.
      init = nn.initializers.zeros
      if name == 'registers':
        init = nn.initializers.normal(1e-6)
      token = self.param(name, init, (1, count, self.width))
      token = jnp.broadcast_to(token, (images.shape[0], count, self.width))
      prefix.append(token.astype(x.dtype))
    if prefix:
      x = jnp.concatenate([*prefix, x], axis=1)  # [B, L, D]
    out = features | encoder.Encoder(options_of(self), name='Transformer')(
      x, grid=grid, train=train, visible=visible
    )
    head = MAPHead(options_of(self), name='MAPHead_0')
    x = pool(self, out['encoded'], head)
    if self.final_norm == 'pooled':
      x = encoder.layer_norm(options_of(self), 'fc_norm')(x)
    if self.representation_size is not None:
      x = nn.Dense(
        self.representation_size, dtype=self.dtype, name='pre_logits'
      )(x)
      x = jnp.tanh(x)
    out['pre_logits'] = x
    if self.decoder is not None:
      decoder = mae.Decoder(
        options_of(self), self.decoder, self.patch_outputs, name='decoder'
      )
      return decoder(out['encoded'], hidden, grid=grid, train=train), out
    if self.patch_outputs is not None:
      head = nn.Dense(
        self.patch_outputs,
        kernel_init=nn.initializers.zeros,
        dtype=self.dtype,
        dot_general=FLOAT32_SUMS,
        name='patch_head',
      )
      return head(out['encoded'][:, -math.prod(grid) :]), out
    to_logits = functools.partial(
      classify,
      num_classes=self.num_classes,
      head_bias=self.head_bias,
      head_stddev=self.head_stddev,
    )
    logits = to_logits(x)
    if self.distillation_token:
      out['distilled'] = to_logits(out['encoded'][:, 1], name='head_dist')
      if not train:
        logits = (logits + out['distilled']) / 2
    return logits, out
