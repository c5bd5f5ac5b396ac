"""The Vision Transformer and its hybrids (arXiv:2010.11929, §3.1).

Modules and parameters carry the names of the released checkpoints, so that
checkpoints map one to one. The ablations of appendix D are attributes.

Axes: B batch, L tokens, D width. Images are [B, height, width, channels].
"""

import math
import re

import flax.linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import attention, position, quantized, resnet
from vit_jax.models.embedding import PatchEmbedding, replace_embeddings
from vit_jax.models.encoder import Encoder, MlpBlock
from vit_jax.models.head import classify, predict_patches
from vit_jax.models.images import check_images

POOLINGS = ('token', 'gap', 'map')

# Names for which `ViT.is_rounded` is true. A hybrid's ResNet is not rounded, as
# it standardizes kernels in float32, nor the head, which computes in float32.
_ROUNDED = re.compile(
  r'(Transformer|embedding|pre_logits|MAPHead_0|patch_head)/(.*/)?kernel'
)


class MAPHead(nn.Module):
  """Pools tokens by attention from a learned query (not in the paper).

  This is multi-head attention pooling (Set Transformer, arXiv:1810.00825, §3.2)
  as in "Scaling Vision Transformers" (arXiv:2106.04560), with the parameter
  names of that paper's public code. Attributes are those of `ViT` with the same
  names.
  """

  heads: int
  mlp_dim: int
  gelu: str = 'tanh'
  norm_epsilon: float = 1e-6
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    """Maps [B, L, D] to [B, D]."""
    batch, _, width = tokens.shape
    probe = self.param('probe', nn.initializers.xavier_uniform(), (1, 1, width))
    probe = jnp.broadcast_to(probe.astype(self.dtype), (batch, 1, width))
    x = attention.MultiHeadDotProductAttention(
      self.heads, dtype=self.dtype, name='MultiHeadDotProductAttention_0'
    )(probe, attended=tokens)
    y = nn.LayerNorm(
      epsilon=self.norm_epsilon, dtype=self.dtype, name='LayerNorm_0'
    )(x)
    y = MlpBlock(
      self.mlp_dim, gelu=self.gelu, dtype=self.dtype, name='MlpBlock_0'
    )(y, train=False)
    return (x + y)[:, 0]


class ViT(nn.Module):
  """The Vision Transformer, classifier included (arXiv:2010.11929, §3.1).

  Make one with `vit_jax.models.build`, which checks these attributes.

  Attributes:
    num_classes: number of logits.
    width: D, the size of a token.
    depth: number of Transformer blocks.
    heads: attention heads of a block; must divide the width.
    mlp_dim: hidden size of a block's MLP.
    patch_size: (height, width) of a patch, in pixels; in a hybrid, in positions
      of the ResNet's feature map.
    resnet_blocks: units of each stage of a hybrid's ResNet, such as (3, 4, 9);
      () is a ResNet's root only. None makes the model a ViT without a ResNet.
    resnet_width: width factor of that ResNet, a multiple of 1/32.
    position_embedding: '1d' (the paper's), '2d', 'sincos2d', 'none',
      'relative' (the heads share its embeddings) or 'relative_per_head'. See
      `position` and, for the relative ones, `dot_product.relative_scores`.
    position_site: where the position embedding is added (§D.4): 'stem',
      'every_layer' (each layer learns its own) or 'every_layer_shared'.
    position_stddev: standard deviation of a learned position embedding's
      initial values.
    attention: 'full', or 'axial', in which each block attends within the rows
      of the patches, then within the columns (§D.6).
    attention_implementation: one of `dot_product.IMPLEMENTATIONS`.
    representation_size: size of the tanh layer before the head, the paper's
      pre-training head; None leaves it out, as in fine-tuning.
    pooling: 'token' adds a class token. The others have none: 'gap' is the mean
      over the patch tokens (§D.3), 'map' is attention pooling.
    gelu: 'tanh', the approximation of the released code and weights, or
      'exact'.
    norm_epsilon: epsilon of every LayerNorm.
    norm_position: 'pre', the paper's: a LayerNorm before attention, before the
      MLP and after the last block. 'post' is the original Transformer's
      (arXiv:1706.03762, §3.1): a LayerNorm after each residual sum, so that no
      other one follows the last block. It has no `parallel` blocks.
    parallel: whether a block's MLP reads the same normalised tokens as its
      attention, instead of the sum with attention's output. This and the next
      three are options for large models, from arXiv:2302.05442, §2.
    qk_norm: whether LayerNorms, without a bias, normalise queries and keys.
    qkv_bias: whether the blocks' queries, keys and values have biases.
    norm_bias: whether the encoder's LayerNorms have biases.
    dropout_rate: probability of zeroing, at the four places of the released
      code; attention weights are never dropped.
    stochastic_depth: probability that an example leaves a branch of the last
      block out, see `dropout.stochastic_depth`. It grows linearly from 0 in the
      first block. A hybrid's ResNet has none.
    head_bias: initial value of the head's bias. The head's kernel starts at 0.
    dtype: compute dtype. Parameters, the softmax, the normalisations'
      statistics and the head are float32 throughout.
    remat: what the backward pass recomputes of a block; see
      `encoder.REMAT_POLICIES`. For a hybrid's ResNet units, see
      `resnet.REMAT_POLICIES`.
    scan: run the blocks as one loop, which compiles faster. The blocks'
      parameters are then stacked (`stack_blocks`). Equal values give equal
      logits, but a random key gives other initial values and dropout masks.
    quantization: a key of `quantized.QUANTIZATIONS`; `build` returns the
      `quantized` model.
    patch_outputs: how many numbers to predict for each patch, in place of the
      classifier (masked patch prediction, B.1.2); `masked_patch.adapted` sets
      it.
  """

  num_classes: int
  width: int
  depth: int
  heads: int
  mlp_dim: int
  patch_size: tuple[int, int]
  resnet_blocks: tuple[int, ...] | None = None
  resnet_width: float = 1
  position_embedding: str = '1d'
  position_site: str = 'stem'
  position_stddev: float = position.STDDEV
  attention: str = 'full'
  attention_implementation: str = 'plain'
  representation_size: int | None = None
  pooling: str = 'token'
  gelu: str = 'tanh'
  norm_epsilon: float = 1e-6
  norm_position: str = 'pre'
  parallel: bool = False
  qk_norm: bool = False
  qkv_bias: bool = True
  norm_bias: bool = True
  dropout_rate: float = 0.0
  stochastic_depth: float = 0.0
  head_bias: float = 0.0
  dtype: jax.typing.DTypeLike = jnp.float32
  remat: str = 'none'
  scan: bool = False
  quantization: str = 'none'
  patch_outputs: int | None = None

  @nn.nowrap  # qwix refuses to work within a module's method.
  def quantized(self) -> 'ViT':
    """Returns the model whose products are as `quantization` says."""
    return quantized.quantized(self, self.quantization)

  def is_rounded(self, name: str) -> bool:
    """Returns whether a parameter is rounded to `dtype` wherever it is used.

    Such a parameter may as well be rounded before it is sent to a device.

    Args:
      name: such as `Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel`.
    """
    return bool(_ROUNDED.fullmatch(name))

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
      ValueError: the images are not float, are not of rank 4, are smaller than
        one patch, or have another size than the parameters' position embedding.
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
        ' classifies: adapt it with masked_patch.adapted.'
      )
    if self.pooling == 'token':
      cls = self.param('cls', nn.initializers.zeros, (1, 1, self.width))
      cls = jnp.broadcast_to(cls, (images.shape[0], 1, self.width))
      x = jnp.concatenate([cls.astype(x.dtype), x], axis=1)  # [B, L, D]
    out = features | Encoder(
      depth=self.depth,
      heads=self.heads,
      mlp_dim=self.mlp_dim,
      attention=self.attention,
      attention_implementation=self.attention_implementation,
      position_embedding=self.position_embedding,
      position_site=self.position_site,
      position_stddev=self.position_stddev,
      gelu=self.gelu,
      norm_epsilon=self.norm_epsilon,
      norm_position=self.norm_position,
      parallel=self.parallel,
      qk_norm=self.qk_norm,
      qkv_bias=self.qkv_bias,
      norm_bias=self.norm_bias,
      dropout_rate=self.dropout_rate,
      stochastic_depth=self.stochastic_depth,
      dtype=self.dtype,
      remat=self.remat,
      scan=self.scan,
      name='Transformer',
    )(x, grid=grid, train=train)
    x = self._pool(out['encoded'])
    if self.representation_size is not None:
      x = nn.Dense(
        self.representation_size, dtype=self.dtype, name='pre_logits'
      )(x)
      x = jnp.tanh(x)
    out['pre_logits'] = x
    if self.patch_outputs is not None:
      patches = out['encoded'][:, -math.prod(grid) :]
      predictions = predict_patches(
        patches, outputs=self.patch_outputs, dtype=self.dtype
      )
      return predictions, out
    logits = classify(x, num_classes=self.num_classes, head_bias=self.head_bias)
    return logits, out

  def _pool(self, encoded: jax.Array) -> jax.Array:
    """Maps [B, L, D] to [B, D]."""
    if self.pooling == 'token':
      return encoded[:, 0]
    if self.pooling == 'gap':
      return encoded.mean(axis=1)
    return MAPHead(
      self.heads,
      self.mlp_dim,
      gelu=self.gelu,
      norm_epsilon=self.norm_epsilon,
      dtype=self.dtype,
      name='MAPHead_0',
    )(encoded)
