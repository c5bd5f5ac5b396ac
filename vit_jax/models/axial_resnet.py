"""AxialResNet50: axial attention in place of 3x3 convolutions (§D.6).

arXiv:2010.11929 compares its axial Transformers with an AxialResNet50 ported
from the code of Wang et al. (arXiv:2003.07853): a ResNet50 in which attention
along the height, then along the width, both with relative positions, takes the
place of each 3x3 convolution. The paper says no more. The rest follows
Scenic's AxialResNet: post-activation bottleneck units, weight standardization,
8 heads, GroupNorm with epsilon 1e-4 for every norm, and, unlike Wang et al., no
norm of the scores. Three things differ from Scenic, as the docstrings explain:
the score of key and position, the initial weights, and the pooling's border.

Axes: B batch, h and w the rows and columns of a feature map, C channels;
N sequences, L their length, H heads, K the width of a head's values.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import resnet

EPSILON = 1e-4  # Every GroupNorm uses it.


def relative_attention(
  query: jax.Array, key: jax.Array, value: jax.Array, table: jax.Array
) -> jax.Array:
  """Attention with relative positions in scores and values.

  For a query at position o and a key at p, their offset has three embeddings:
  r_q for queries, r_k for keys and r_v for values (Wang et al., Eq. 3):

    scores = q_o . k_p + q_o . r_q + k_p . r_k
    output = sum_p softmax_p(scores) (v_p + r_v)

  The scores are not scaled by 1 / sqrt(K).

  In Scenic, the last term of the scores takes the key at o instead of p,
  because Scenic lacks a transpose that is in Wang et al.'s code.

  Args:
    query: [N, L, H, K / 2], any float dtype.
    key: [N, L, H, K / 2].
    value: [N, L, H, K].
    table: [2L-1, 2K], shared by the heads. Row o - p + L - 1 holds the offset's
      K / 2 numbers of r_q, K / 2 of r_k and K of r_v.

  Returns:
    [N, L, H, K] in the values' dtype; the softmax is float32 inside.
  """
  length, width = value.shape[1], value.shape[-1]
  positions = np.arange(length)
  offsets = positions[:, None] - positions[None, :] + length - 1  # [L, L]
  # To gather all pairs costs little memory: they have no axis N or H.
  pairs = table.astype(value.dtype)[offsets]  # [L, L, 2K]
  of_query, of_key, of_value = jnp.split(pairs, [width // 2, width], axis=-1)
  scores = jnp.einsum('nohk,nphk->nhop', query, key)  # [N, H, L, L]
  scores += jnp.einsum('nohk,opk->nhop', query, of_query)
  scores += jnp.einsum('nphk,opk->nhop', key, of_key)
  weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(value.dtype)
  return jnp.einsum('nhop,nphk->nohk', weights, value) + jnp.einsum(
    'nhop,opk->nohk', weights, of_value
  )  # [N, L, H, K]


class AxialAttention(nn.Module):
  """Multi-head attention along one axis of a feature map.

  The norms take their statistics over each row or column of the map, as in
  Scenic. The standard deviations of initial weights are those of Wang et al.'s
  code, 1 / sqrt(C) and 1 / sqrt(K). Scenic has 1 / C and 1 / K, with which the
  norms' epsilon matters and the relative terms start smaller.

  Attributes:
    heads: number of heads H; 2H must divide C.
    axis: 'height' or 'width'.
    dtype: compute dtype; parameters are float32.
  """

  heads: int
  axis: str
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, h, w, C] to the same shape.

    Raises:
      ValueError: 2H does not divide C.
    """
    if x.shape[-1] % (2 * self.heads):
      raise ValueError(
        f'{x.shape[-1]} channels are not a multiple of 2 * {self.heads} heads: '
        'the queries and keys of a head are half as wide as its values; change '
        'heads or width_factor.'
      )
    if self.axis == 'height':
      x = x.swapaxes(1, 2)  # [B, w, h, C]
    shape = x.shape
    x = x.reshape(-1, *shape[2:])  # [N, L, C]
    x = self._attend(x).reshape(shape)
    return x.swapaxes(1, 2) if self.axis == 'height' else x  # [B, h, w, C]

  def _attend(self, x: jax.Array) -> jax.Array:
    """Maps sequences [N, L, C] to the same shape."""
    sequences, length, channels = x.shape
    width = channels // self.heads
    norm = functools.partial(
      resnet.GroupNorm, epsilon=EPSILON, dtype=self.dtype
    )
    x = nn.Dense(
      2 * channels,
      use_bias=False,
      kernel_init=nn.initializers.normal(channels**-0.5),
      dtype=self.dtype,
      name='qkv',
    )(x)
    x = norm(name='gn_qkv')(x)
    x = x.reshape(sequences, length, self.heads, -1)  # [N, L, H, 2K]
    query, key, value = jnp.split(x, [width // 2, width], axis=-1)
    table = self.param(
      'relative_embedding',
      nn.initializers.normal(width**-0.5),
      (2 * length - 1, 2 * width),
    )
    x = relative_attention(query, key, value, table)
    return norm(name='gn_out')(x.reshape(sequences, length, channels))


class AxialUnit(resnet.PostActivationUnit):
  """A bottleneck unit with axial attention in its middle.

  Attributes:
    heads: attention heads.
  """

  epsilon: float = EPSILON
  heads: int = 8

  def middle(self, x: jax.Array) -> jax.Array:
    """Attends along both axes; stride 2 average-pools the result over 2x2."""
    for axis in ('height', 'width'):
      x = AxialAttention(
        self.heads, axis, dtype=self.dtype, name=f'{axis}_attention'
      )(x)
    if self.strides == 1:
      return x
    window = (self.strides, self.strides)
    # The last window of an odd map averages only its features, not the padding.
    # At 224 px no map is odd.
    return nn.avg_pool(x, window, window, 'SAME', count_include_pad=False)


class AxialResNet(resnet.Classifier, kw_only=True):
  """A ResNet with axial attention, classifier included (§D.6).

  The images that it is initialised with determine the sizes of its relative
  embeddings.

  Attributes:
    Those of `resnet.Classifier`, and
    heads: heads of every attention; twice their number must divide the
      channels.
  """

  heads: int = 8

  def features(self, images: jax.Array, **options: Any) -> jax.Array:
    """Returns the last feature map."""
    unit = functools.partial(AxialUnit, heads=self.heads)
    return resnet.backbone(images, unit=unit, epsilon=EPSILON, **options)
