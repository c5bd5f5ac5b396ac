"""ResNet pieces, and the backbone of the hybrids (arXiv:2010.11929, §3.1).

All ResNets here have GroupNorm and standardized convolutions ("ResNet (BiT)",
§4.1). The hybrids' backbone is post-activation (v1); the BiT baselines in
`bit.py` are pre-activation (v2). Their epsilons and paddings differ, too. Both
follow the released code and weights.

Axes: B batch, h and w the rows and columns of a feature map, C channels.
Kernels are [kernel height, kernel width, channels in, channels out].
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import sharding
from vit_jax.models import convolution
from vit_jax.models.dropout import depth_rates, stochastic_depth

# What the backward pass keeps of a unit: `none` keeps all, `full` only the
# unit's input, `dots` also the outputs of convolutions and dense layers, so
# that only the rest, such as norms and ReLUs, is recomputed.
REMAT_POLICIES = {
  'none': None,
  'full': jax.checkpoint_policies.nothing_saveable,
  'dots': jax.checkpoint_policies.save_from_both_policies(
    lambda primitive, *_, **__: primitive is jax.lax.conv_general_dilated_p,
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  ),
}

# Channels of the root at width factor 1.
_ROOT_CHANNELS = 64
# Groups of every norm in the authors' code; see `groups`.
GROUPS = 32


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
  """Returns the number of channels of a ResNet's root.

  Raises:
    ValueError: the number is not positive and even, as the stages need it.
  """
  channels = _ROOT_CHANNELS * width_factor
  if channels < 2 or channels % 2:
    raise ValueError(
      f'a width factor of {width_factor} gives {channels:g} channels in the'
      f' root, expected an even number: choose a multiple of 1/32.'
    )
  return int(channels)


def bit_standardize(kernel: jax.Array) -> jax.Array:
  """Standardizes weights (arXiv:1903.10520) as BiT does: sqrt(... + epsilon).

  Args:
    kernel: [kh, kw, C in, C out], any float dtype.

  Returns:
    (w - mean) / sqrt(variance + 1e-10), the same shape, float32. Mean and
    biased variance are over each output channel's weights.
  """
  centred, variance = _moments(kernel)
  return centred * jax.lax.rsqrt(variance + 1e-10)


def hybrid_standardize(kernel: jax.Array) -> jax.Array:
  """Standardizes weights as the hybrids do: sqrt(...) + epsilon.

  Args:
    kernel: [kh, kw, C in, C out], any float dtype.

  Returns:
    (w - mean) / (sqrt(variance) + 1e-5), the same shape, float32. Mean and
    biased variance are over each output channel's weights.
  """
  centred, variance = _moments(kernel)
  return centred / (jnp.sqrt(variance) + 1e-5)


def _moments(kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns centred weights, and each output channel's variance.

  Both are float32, or float64 if the kernel is. One pass over the weights gives
  all sums: their distances from the mean of a few of them are small enough to
  be squared before the mean is known.
  """
  kernel = kernel.astype(jnp.promote_types(kernel.dtype, jnp.float32))
  axes = (0, 1, 2)
  # The moments do not depend on where distances start.
  start = jax.lax.stop_gradient(kernel[:, :, :8].mean(axes, keepdims=True))
  distance = kernel - start
  mean = distance.mean(axes, keepdims=True)
  squares = jnp.square(distance).mean(axes, keepdims=True)
  return distance - mean, jnp.maximum(squares - jnp.square(mean), 0)


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
    standardize: maps the float32 kernel to the one to convolve with.
    dtype: compute dtype; the kernel is stored and standardized in float32.
  """

  features: int
  kernel_size: tuple[int, int]
  strides: int = 1
  padding: convolution.Padding = 'SAME'
  standardize: Callable[[jax.Array], jax.Array] = hybrid_standardize
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, h, w, C in] to [B, h', w', features] in the compute dtype."""
    kernel = self.param(
      'kernel',
      nn.initializers.lecun_normal(),
      (*self.kernel_size, x.shape[-1], self.features),
    )
    return convolution.convolve(
      x.astype(self.dtype),
      self.standardize(kernel).astype(self.dtype),
      strides=self.strides,
      padding=self.padding,
    )


class PostActivationUnit(nn.Module):
  """A bottleneck unit of the hybrids: ReLU after the sum (v1).

  The last norm's scale starts at 0, so that a unit without a projection starts
  as the identity, apart from the ReLU.

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
    conv = functools.partial(StandardizedConv, dtype=self.dtype)
    norm = functools.partial(GroupNorm, epsilon=1e-6, dtype=self.dtype)
    residual = x
    if x.shape[-1] != 4 * self.features or self.strides != 1:
      residual = conv(
        4 * self.features, (1, 1), strides=self.strides, name='conv_proj'
      )(x)
      residual = norm(name='gn_proj')(residual)
    x = conv(self.features, (1, 1), name='conv1')(x)
    x = nn.relu(norm(name='gn1')(x))
    x = conv(self.features, (3, 3), strides=self.strides, name='conv2')(x)
    x = nn.relu(norm(name='gn2')(x))
    x = conv(4 * self.features, (1, 1), name='conv3')(x)
    x = norm(scale_init=nn.initializers.zeros, name='gn3')(x)
    return nn.relu(residual + stochastic_depth(self, skip_rate, x.shape[0])(x))


class Stage(nn.Module):
  """Residual units at one resolution, `unit1`, `unit2` and so on.

  Attributes:
    units: number of units.
    features: the `features` of each unit.
    strides: stride of the first unit; the others have stride 1.
    unit: makes a unit from features, strides, dtype and name.
    dtype: compute dtype.
    remat: what the backward pass recomputes of each unit; see
      `REMAT_POLICIES`.
  """

  units: int
  features: int
  strides: int
  unit: Callable[..., nn.Module] = PostActivationUnit
  dtype: jax.typing.DTypeLike = jnp.float32
  remat: str = 'none'

  @nn.compact
  def __call__(
    self, x: jax.Array, skip_rates: Sequence[np.float32 | None]
  ) -> jax.Array:
    """Maps [B, h, w, C] to [B, ceil(h / s), ceil(w / s), 4 * features].

    `skip_rates` are the units' rates of `stochastic_depth`.
    """

    def run_unit(unit, x, skip_rate):
      return sharding.constrain(unit(x, skip_rate), sharding.BATCH)

    if self.remat != 'none':
      run_unit = nn.remat(run_unit, policy=REMAT_POLICIES[self.remat])
    for i, skip_rate in zip(range(self.units), skip_rates, strict=True):
      unit = self.unit(
        features=self.features,
        strides=1 if i else self.strides,
        dtype=self.dtype,
        name=f'unit{i + 1}',
      )
      x = run_unit(unit, x, skip_rate)
    return x


def stages(
  x: jax.Array,
  *,
  blocks: tuple[int, ...],
  width_factor: float,
  unit: Callable[..., nn.Module],
  dtype: jax.typing.DTypeLike,
  remat: str,
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
    remat: see `REMAT_POLICIES`.
    last_skip_rate: the rate of the last unit, see `dropout.depth_rates`.

  Returns:
    [B, h', w', `feature_channels(blocks, width_factor)`]. Each stage but the
    first halves the rows and columns, rounding up.
  """
  x = sharding.constrain(x, sharding.BATCH)
  skip_rates = iter(depth_rates(last_skip_rate, sum(blocks)))
  for i, units in enumerate(blocks):
    x = Stage(
      units=units,
      features=root_channels(width_factor) * 2**i,
      strides=2 if i else 1,
      unit=unit,
      dtype=dtype,
      remat=remat,
      name=f'block{i + 1}',
    )(x, tuple(itertools.islice(skip_rates, units)))
  return x


def backbone(
  images: jax.Array,
  *,
  blocks: tuple[int, ...],
  width_factor: float = 1,
  unit: Callable[..., nn.Module] = PostActivationUnit,
  epsilon: float = 1e-6,
  dtype: jax.typing.DTypeLike = jnp.float32,
  remat: str = 'none',
  last_skip_rate: float = 0.0,
) -> jax.Array:
  """Runs the ResNet of a hybrid: root and stages, without pooling and head.

  Call it within an `nn.compact` method: the parameters `conv_root`, `gn_root`
  and `block{b}/unit{u}` then belong to the calling module, as in the released
  checkpoints.

  Args:
    images: [B, height, width, channels], float.
    blocks: units of each stage; () runs only the root.
    width_factor: multiplies all channels.
    unit: makes a unit from features, strides, dtype and name.
    epsilon: epsilon of the root's norm.
    dtype: compute dtype. Parameters, weight standardization and the norms'
      statistics are float32 throughout.
    remat: what the backward pass recomputes; see `REMAT_POLICIES`.
    last_skip_rate: the rate of the last unit, see `dropout.depth_rates`.

  Returns:
    [B, h, w, C] in the compute dtype, with (h, w) from `feature_grid` and C
    from `feature_channels`.

  Raises:
    ValueError: the images have no pixels.
  """
  feature_grid(images.shape[1:3], blocks)  # Raises if there are no pixels.
  x = StandardizedConv(
    root_channels(width_factor),
    (7, 7),
    strides=2,
    dtype=dtype,
    name='conv_root',
  )(images)
  x = nn.relu(GroupNorm(epsilon=epsilon, dtype=dtype, name='gn_root')(x))
  x = nn.max_pool(x, (3, 3), strides=(2, 2), padding='SAME')
  return stages(
    x,
    blocks=blocks,
    width_factor=width_factor,
    unit=unit,
    dtype=dtype,
    remat=remat,
    last_skip_rate=last_skip_rate,
  )


def feature_grid(
  image_size: tuple[int, int], blocks: tuple[int, ...]
) -> tuple[int, int]:
  """Returns the (rows, columns) of the last stage's feature map.

  The root's convolution and pooling halve the image, and so does each stage
  but the first, rounding up each time: ceil(pixels / stride) in all.

  Args:
    image_size: (height, width) in pixels.
    blocks: units of each stage; () for the root's feature map.

  Raises:
    ValueError: the image has no pixels.
  """
  if any(side < 1 for side in image_size):
    raise ValueError(
      f'image size {image_size[0]}x{image_size[1]} px has no pixels, expected '
      'at least 1x1 px: check the crop or the resize.'
    )
  stride = 4 * 2 ** max(len(blocks) - 1, 0)
  return -(-image_size[0] // stride), -(-image_size[1] // stride)


def feature_channels(blocks: tuple[int, ...], width_factor: float = 1) -> int:
  """Returns the channels of the last stage, or of the root if it has none."""
  return root_channels(width_factor) * (2 ** (len(blocks) + 1) if blocks else 1)
