"""The ResNet baselines, "ResNet (BiT)" (arXiv:2010.11929, §4.1).

Pre-activation ResNets (v2) with GroupNorm and weight standardization, as in
Big Transfer (arXiv:1912.11370) and its released weights. The parameters lie
as `block{b}/unit{u}/{gn1, conv1, gn2, conv2, gn3, conv3[, conv_proj]}`, where
each norm comes before the convolution with its number.

Axes: B batch, h and w the rows and columns of a feature map, C channels.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import resnet
from vit_jax.models.dropout import stochastic_depth
from vit_jax.models.head import classify
from vit_jax.models.images import check_images

EPSILON = 1e-5  # Every GroupNorm uses it.


class PreActivationUnit(nn.Module):
  """A bottleneck unit of BiT: norm and ReLU before each convolution (v2).

  Attributes:
    features: channels of the middle convolution; the output has four times
      that number.
    strides: stride of the middle convolution and of the projection.
    dtype: compute dtype.
  """

  features: int
  strides: int = 1
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self, x: jax.Array, skip_rate: jax.typing.ArrayLike | None = None
  ) -> jax.Array:
    """Maps [B, h, w, C] to [B, ceil(h / s), ceil(w / s), 4 * features].

    `skip_rate` is the rate of `stochastic_depth`.
    """
    conv = functools.partial(
      resnet.StandardizedConv,
      standardize=resnet.bit_standardize,
      dtype=self.dtype,
    )
    norm = functools.partial(
      resnet.GroupNorm, epsilon=EPSILON, dtype=self.dtype
    )
    residual = x
    x = nn.relu(norm(name='gn1')(x))
    if residual.shape[-1] != 4 * self.features or self.strides != 1:
      # A projection takes the activated input, an identity shortcut does not.
      residual = conv(
        4 * self.features, (1, 1), strides=self.strides, name='conv_proj'
      )(x)
    x = conv(self.features, (1, 1), name='conv1')(x)
    x = nn.relu(norm(name='gn2')(x))
    x = conv(
      self.features,
      (3, 3),
      strides=self.strides,
      padding=((1, 1), (1, 1)),  # SAME would pad (0, 1) at stride 2.
      name='conv2',
    )(x)
    x = nn.relu(norm(name='gn3')(x))
    x = conv(4 * self.features, (1, 1), name='conv3')(x)
    return residual + stochastic_depth(self, skip_rate, x.shape[0])(x)


def root(
  images: jax.Array, *, width_factor: float, dtype: jax.typing.DTypeLike
) -> jax.Array:
  """Applies the first convolution and the max pooling, without norm or ReLU.

  Call it within an `nn.compact` method, whose module gets `conv_root`.

  Args:
    images: [B, height, width, channels], float.
    width_factor: multiplies the 64 output channels.
    dtype: compute dtype.

  Returns:
    [B, ceil(height / 4), ceil(width / 4), 64 * width_factor].
  """
  x = resnet.StandardizedConv(
    resnet.root_channels(width_factor),
    (7, 7),
    strides=2,
    padding=((3, 3), (3, 3)),
    standardize=resnet.bit_standardize,
    dtype=dtype,
    name='conv_root',
  )(images)
  return _pool(x)


def _pool(x: jax.Array) -> jax.Array:
  """Takes the maximum of 3x3 windows with stride 2: [B, h, w, C]."""
  # The released code pads with zeros, not with max_pool's -inf. Zeros win over
  # negative values, which exist because no ReLU comes before the pooling. So
  # they are put in afterwards, where a window has a zero: a padded copy of the
  # largest feature map takes 2% of a step on a TPU.
  pooled = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
  # Sizes are symbolic in an exported model that takes images of any size.
  rows, columns = (
    (window == 0) | (2 * window + 1 == size)
    for window, size in zip(
      map(jnp.arange, pooled.shape[1:3]), x.shape[1:3], strict=True
    )
  )  # Windows that reach over the border.
  zero = (rows[:, None] | columns)[..., None]  # [h', w', 1]
  return jnp.where(zero & (pooled < 0), 0, pooled)


def pool_and_classify(
  encoded: jax.Array, *, num_classes: int, head_bias: float
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Applies global average pooling and the classifier.

  Call it within an `nn.compact` method, whose module gets `head`.

  Args:
    encoded: [B, h, w, C], the last feature map.
    num_classes: number of logits.
    head_bias: initial value of the head's bias; its kernel starts at 0.

  Returns:
    logits: [B, num_classes], float32.
    out: `encoded`, and its mean `pre_logits` [B, C] in the same dtype.
  """
  pre_logits = encoded.mean(axis=(1, 2))  # [B, C]
  logits = classify(pre_logits, num_classes=num_classes, head_bias=head_bias)
  return logits, {'encoded': encoded, 'pre_logits': pre_logits}


class BiT(nn.Module):
  """A BiT ResNet, classifier included.

  Make one with `vit_jax.models.build`.

  Attributes:
    num_classes: number of logits.
    blocks: units of each stage: (3, 4, 6, 3) for a ResNet50.
    width_factor: multiplies all channels; a multiple of 1/32.
    stochastic_depth: probability that an example leaves the branch of the last
      unit out, see `dropout.stochastic_depth`. It grows linearly from 0 in the
      first unit.
    head_bias: initial value of the head's bias. The head's kernel starts at 0.
    dtype: compute dtype. Parameters, weight standardization, the norms'
      statistics and the head are float32 throughout.
    remat: what the backward pass recomputes of each unit; see
      `resnet.REMAT_POLICIES`.
  """

  num_classes: int
  blocks: tuple[int, ...]
  width_factor: float
  stochastic_depth: float = 0.0
  head_bias: float = 0.0
  dtype: jax.typing.DTypeLike = jnp.float32
  remat: str = 'none'

  @nn.compact
  def __call__(
    self, images: jax.Array, *, train: bool = False
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Classifies images.

    Args:
      images: [B, height, width, channels], float in [-1, 1].
      train: turns stochastic depth on, which takes the random stream 'dropout'
        unless its rate is 0.

    Returns:
      logits: [B, num_classes], float32.
      out: `encoded` [B, h, w, C], the feature map after the last norm and
        ReLU; `pre_logits` [B, C], its mean, the head's input. Both in the
        compute dtype; h and w are the image's divided by 32, rounded up, and
        C is 2048 * width_factor, with the usual four stages.

    Raises:
      ValueError: the images are not float, not of rank 4, or have no pixels.
    """
    check_images(images)
    resnet.feature_grid(images.shape[1:3], self.blocks)  # Raises if no pixels.
    x = root(images, width_factor=self.width_factor, dtype=self.dtype)
    x = resnet.stages(
      x,
      blocks=self.blocks,
      width_factor=self.width_factor,
      unit=PreActivationUnit,
      dtype=self.dtype,
      remat=self.remat,
      last_skip_rate=self.stochastic_depth if train else 0.0,
    )
    x = resnet.GroupNorm(epsilon=EPSILON, dtype=self.dtype, name='gn_final')(x)
    return pool_and_classify(
      nn.relu(x), num_classes=self.num_classes, head_bias=self.head_bias
    )
