"""ResNets: pieces, the hybrids' backbone, and the BiT baselines.

All ResNets here have GroupNorm and standardized convolutions ("ResNet (BiT)",
arXiv:2010.11929, §4.1). The hybrids' backbone is post-activation (v1); the BiT
baselines, as in Big Transfer (arXiv:1912.11370), are pre-activation (v2). Their
epsilons and paddings differ, too. Both follow the released code and weights,
with parameters at `block{b}/unit{u}/{gn1, conv1, gn2, conv2, gn3, conv3, ...}`.

Axes: B batch, h and w the rows and columns of a feature map, C channels.
Kernels are [kernel height, kernel width, channels in, channels out].
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vit_jax import sharding
from vit_jax.models.shared import (
  REMAT_POLICIES,
  check_images,
  classify,
  depth_rates,
  stochastic_depth,
)

Padding = str | tuple[tuple[int, int], tuple[int, int]]

# Groups of every norm in the authors' code; see `groups`.
GROUPS = 32
# The epsilon of BiT's norms.
BIT_EPSILON = 1e-5


def groups(channels: int) -> int:
  """Returns the number of groups of a norm.

  Differs from the authors' code: at most half the number of channels, so that
  narrow models (width factor below 1) keep the ratio of the root at factor 1.
  """
  return min(GROUPS, channels // 2)


def GroupNorm(**options: Any) -> Callable[[jax.Array], jax.Array]:
  """Returns Flax's GroupNorm with a number of groups that suits the channels.

  Args:
    **options: options of `nn.GroupNorm`.
  """
  # Statistics are float32 whatever `dtype` is. Flax's fast variance, E[x^2] -
  # E[x]^2, reads the feature map once less in each direction. It loses
  # (mean / deviation)^2 in relative precision, and a pre-activation ResNet's
  # residual stream is not centred. In bfloat16, rounding the feature map has
  # lost far more already: float32 has 16 binary digits more.
  return lambda x: nn.GroupNorm(
    num_groups=groups(x.shape[-1]),
    use_fast_variance=x.dtype.itemsize < 4,
    **options,
  )(x)


def root_channels(width_factor: float) -> int:
  """Returns the number of channels of a ResNet's root."""
  return int(64 * width_factor)


def standardize(kernel: jax.Array, bit: bool) -> jax.Array:
  """Standardizes weights (arXiv:1903.10520).

  Args:
    kernel: [kh, kw, C in, C out], any float dtype.
    bit: whether to divide as BiT does, by sqrt(variance + 1e-10), or else as
      the hybrids do, by sqrt(variance) + 1e-5.

  Returns:
    The centred and divided weights, the same shape, float32. Mean and biased
    variance are over each output channel's weights.
  """
  kernel = kernel.astype(jnp.promote_types(kernel.dtype, jnp.float32))
  centred = kernel - kernel.mean((0, 1, 2), keepdims=True)
  variance = jnp.square(centred).mean((0, 1, 2), keepdims=True)
  if bit:
    return centred * jax.lax.rsqrt(variance + 1e-10)
  return centred / (jnp.sqrt(variance) + 1e-5)


class StandardizedConv(nn.Module):
  """A convolution without bias whose kernel is standardized at every use.

  The kernel's initial values are LeCun-normal, the default of Flax and of the
  released code. The scale of the weights does not change the standardized
  kernel, but their gradients are inversely proportional to it.

  Attributes:
    features: output channels.
    kernel_size: (height, width).
    strides: stride along both axes.
    padding: 'SAME', 'VALID' or ((top, bottom), (left, right)).
    bit: see `standardize`.
    dtype: compute dtype; the kernel is stored and standardized in float32.
  """

  features: int
  kernel_size: tuple[int, int]
  strides: int = 1
  padding: Padding = 'SAME'
  bit: bool = False
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, h, w, C in] to [B, h', w', features] in the compute dtype."""
    kernel = self.param(
      'kernel',
      nn.initializers.lecun_normal(),
      (*self.kernel_size, x.shape[-1], self.features),
    )
    strides = self.strides
    # Sizes are symbolic in an exported model that takes images of any size.
    fixed = all(isinstance(size, int) for size in x.shape)
    if fixed and self.kernel_size == (1, 1):
      # For the gradient of a strided product, XLA would convolve a feature map
      # with zeros between the pixels, which takes seven times as long.
      x, strides = x[:, ::strides, ::strides], 1
    return jax.lax.conv_general_dilated(
      x.astype(self.dtype),
      standardize(kernel, self.bit).astype(self.dtype),
      window_strides=(strides, strides),
      padding=self.padding,
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    )


class PostActivationUnit(nn.Module):
  """A bottleneck unit of the hybrids: ReLU after the sum (v1).

  The last norm's scale starts at 0, so that a unit without a projection starts
  as the identity, apart from the ReLU.

  Attributes:
    features: channels of the middle convolution; the output has four times
      that number.
    strides: stride of the middle convolution and of the projection.
    epsilon: epsilon of the norms.
    dtype: compute dtype.
  """

  features: int
  strides: int = 1
  epsilon: float = 1e-6
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self, x: jax.Array, skip_rate: jax.typing.ArrayLike | None = None
  ) -> jax.Array:
    """Maps [B, h, w, C] to [B, ceil(h / s), ceil(w / s), 4 * features].

    `skip_rate` is the rate of `stochastic_depth`.
    """
    conv = functools.partial(StandardizedConv, dtype=self.dtype)
    norm = functools.partial(GroupNorm, epsilon=self.epsilon, dtype=self.dtype)
    residual = x
    if x.shape[-1] != 4 * self.features or self.strides != 1:
      residual = conv(
        4 * self.features, (1, 1), strides=self.strides, name='conv_proj'
      )(x)
      residual = norm(name='gn_proj')(residual)
    x = conv(self.features, (1, 1), name='conv1')(x)
    x = self.middle(nn.relu(norm(name='gn1')(x)))
    x = conv(4 * self.features, (1, 1), name='conv3')(nn.relu(x))
    x = norm(scale_init=nn.initializers.zeros, name='gn3')(x)
    return nn.relu(residual + stochastic_depth(self, skip_rate, x.shape[0])(x))

  def middle(self, x: jax.Array) -> jax.Array:
    """Maps [B, h, w, features] to [B, h', w', features], before the ReLU."""
    x = StandardizedConv(
      self.features,
      (3, 3),
      strides=self.strides,
      dtype=self.dtype,
      name='conv2',
    )(x)
    return GroupNorm(epsilon=self.epsilon, dtype=self.dtype, name='gn2')(x)


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
    conv = functools.partial(StandardizedConv, bit=True, dtype=self.dtype)
    norm = functools.partial(GroupNorm, epsilon=BIT_EPSILON, dtype=self.dtype)
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


class Stage(nn.Module):
  """Residual units at one resolution, `unit1`, `unit2` and so on.

  Attributes:
    unit: makes a unit from strides and name; the last argument of a unit's call
      is its rate of `stochastic_depth`.
    count: number of units.
    strides: stride of the first unit.
    remat: what the backward pass recomputes of each unit; see
      `shared.REMAT_POLICIES`.
  """

  unit: Callable[..., nn.Module]
  count: int
  strides: int
  remat: str = 'none'

  @nn.compact
  def __call__(self, x: jax.Array, skip_rates: Any) -> jax.Array:
    """Maps [B, h, w, C] to the last unit's output."""

    def run_unit(unit, x, skip_rate):
      return sharding.constrain(unit(x, skip_rate), sharding.BATCH)

    if self.remat != 'none':
      run_unit = nn.remat(run_unit, policy=REMAT_POLICIES[self.remat])
    for i in range(self.count):
      unit = self.unit(strides=1 if i else self.strides, name=f'unit{i + 1}')
      x = run_unit(unit, x, skip_rates[i])
    return x


def stages(
  x: jax.Array,
  *,
  blocks: tuple[int, ...],
  width_factor: float,
  unit: Callable[..., nn.Module],
  dtype: jax.typing.DTypeLike,
  remat: str = 'none',
  last_skip_rate: float = 0.0,
) -> jax.Array:
  """Runs the stages `block1`, `block2` and so on of the calling module.

  Call it within an `nn.compact` method, whose module gets the parameters.

  Args:
    x: [B, h, w, C], the root's output.
    blocks: units of each stage.
    width_factor: multiplies all channels.
    unit: makes a unit from features, strides, dtype and name.
    dtype: compute dtype.
    remat: see `shared.REMAT_POLICIES`.
    last_skip_rate: the rate of the last unit, see `shared.depth_rates`.

  Returns:
    [B, h', w', C]. Each stage but the first halves the rows and columns,
    rounding up.
  """
  x = sharding.constrain(x, sharding.BATCH)
  skip_rates = depth_rates(last_skip_rate, sum(blocks))
  for i, count in enumerate(blocks):
    make = functools.partial(
      unit, features=root_channels(width_factor) * 2**i, dtype=dtype
    )
    stage = Stage(make, count, 2 if i else 1, remat, name=f'block{i + 1}')
    x = stage(x, skip_rates[:count])
    skip_rates = skip_rates[count:]
  return x


def backbone(
  images: jax.Array,
  *,
  width_factor: float = 1,
  unit: Callable[..., nn.Module] = PostActivationUnit,
  epsilon: float = 1e-6,
  dtype: jax.typing.DTypeLike = jnp.float32,
  **options: Any,
) -> jax.Array:
  """Runs the ResNet of a hybrid: root and stages, without pooling and head.

  Call it within an `nn.compact` method: the parameters `conv_root`, `gn_root`
  and `block{b}/unit{u}` then belong to the calling module, as in the released
  checkpoints.

  Args:
    images: [B, height, width, channels], float.
    width_factor: multiplies all channels.
    unit: makes a unit from features, strides, dtype and name.
    epsilon: epsilon of the root's norm.
    dtype: compute dtype. Parameters, weight standardization and the norms'
      statistics are float32 throughout.
    **options: the other arguments of `stages`; blocks=() runs only the root.

  Returns:
    [B, h, w, C] in the compute dtype, with (h, w) from `feature_grid`.
  """
  x = StandardizedConv(
    root_channels(width_factor),
    (7, 7),
    strides=2,
    dtype=dtype,
    name='conv_root',
  )(images)
  x = nn.relu(GroupNorm(epsilon=epsilon, dtype=dtype, name='gn_root')(x))
  x = nn.max_pool(x, (3, 3), strides=(2, 2), padding='SAME')
  return stages(x, width_factor=width_factor, unit=unit, dtype=dtype, **options)


def feature_grid(
  image_size: tuple[int, int], blocks: tuple[int, ...]
) -> tuple[int, int]:
  """Returns the (rows, columns) of the last stage's feature map.

  The root's convolution and pooling halve the image, and so does each stage
  but the first, rounding up each time: ceil(pixels / stride) in all.

  Args:
    image_size: (height, width) in pixels.
    blocks: units of each stage; () for the root's feature map.
  """
  stride = 4 * 2 ** max(len(blocks) - 1, 0)
  return -(-image_size[0] // stride), -(-image_size[1] // stride)


class Classifier(nn.Module, kw_only=True):
  """A ResNet with global average pooling and a classifier.

  Make one with `vit_jax.models.build`.

  Attributes:
    num_classes: number of logits.
    blocks: units of each stage: (3, 4, 6, 3) for a ResNet50.
    width_factor: multiplies all channels; a multiple of 1/32.
    stochastic_depth: probability that an example leaves the branch of the last
      unit out, see `shared.stochastic_depth`. It grows linearly from 0 in the
      first unit.
    head_bias: initial value of the head's bias.
    head_stddev: of its initial kernel; the paper's starts at 0.
    dtype: compute dtype. Parameters, weight standardization, the norms'
      statistics and the head are float32 throughout.
    remat: what the backward pass recomputes of each unit; see
      `shared.REMAT_POLICIES`.
  """

  num_classes: int
  blocks: tuple[int, ...] = (3, 4, 6, 3)
  width_factor: float = 1
  stochastic_depth: float = 0.0
  head_bias: float = 0.0
  head_stddev: float = 0.0
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
      out: `encoded` [B, h, w, C], the last feature map; `pre_logits` [B, C],
        its mean, the head's input. Both in the compute dtype; h, w and C are
        those of the last stage, see `feature_grid`.

    Raises:
      ValueError: the images are not float or not of rank 4.
    """
    check_images(images)
    encoded = self.features(
      images,
      blocks=self.blocks,
      width_factor=self.width_factor,
      dtype=self.dtype,
      remat=self.remat,
      last_skip_rate=self.stochastic_depth if train else 0.0,
    )
    pre_logits = encoded.mean(axis=(1, 2))  # [B, C]
    logits = classify(
      pre_logits,
      num_classes=self.num_classes,
      head_bias=self.head_bias,
      head_stddev=self.head_stddev,
    )
    return logits, {'encoded': encoded, 'pre_logits': pre_logits}

  def features(self, images: jax.Array, **options: Any) -> jax.Array:
    """Maps images to the last feature map; options are those of `stages`."""
    raise NotImplementedError


class BiT(Classifier):
  """A BiT ResNet, classifier included."""

  def features(self, images: jax.Array, **options: Any) -> jax.Array:
    """Returns the feature map after the last norm and ReLU."""
    x = StandardizedConv(
      root_channels(self.width_factor),
      (7, 7),
      strides=2,
      padding=((3, 3), (3, 3)),
      bit=True,
      dtype=self.dtype,
      name='conv_root',
    )(images)
    # The released code pads with zeros, not with max_pool's -inf. Zeros win
    # over negative values, as no ReLU comes before the pooling.
    x = jnp.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    x = nn.max_pool(x, (3, 3), strides=(2, 2))
    x = stages(x, unit=PreActivationUnit, **options)
    x = GroupNorm(epsilon=BIT_EPSILON, dtype=self.dtype, name='gn_final')(x)
    return nn.relu(x)
