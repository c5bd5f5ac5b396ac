"""What all models share: images in, random masks in training, logits out."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

# What the backward pass keeps of a residual block: `none` keeps all, `full`
# only the block's input, `dots` also the outputs of convolutions and dense
# layers, but not those of attention's products, which are larger.
REMAT_POLICIES = {
  'none': None,
  'full': jax.checkpoint_policies.nothing_saveable,
  'dots': jax.checkpoint_policies.save_from_both_policies(
    lambda primitive, *_, **__: primitive is jax.lax.conv_general_dilated_p,
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  ),
}

# Of the heads that predict patches. They multiply in the model's dtype, because
# they run on every patch, but sum and return float32.
FLOAT32_SUMS = functools.partial(
  jax.lax.dot_general, preferred_element_type=jnp.float32
)

# Random bits of a unit in dropout: the rate is exact to 1 / 65,536. A random
# number has 32, and takes time to make, write and read. By the TPU compiler,
# two rows to a number make a step of ViT-B/16 4% faster. With 8 bits, a rate of
# 0.1 would be 0.1016.
_BITS = 16
_ROWS = 32 // _BITS  # Rows of a batch that share their random numbers.


def normalize(images: jax.Array) -> jax.Array:
  """Maps uint8 [B, H, W, C] in 0..255 to float32 in [-1, 1]."""
  return (images.astype(jnp.float32) - 127.5) / 127.5


def standardize(
  images: jax.Array,
  mean: tuple[float, ...] | None,
  std: tuple[float, ...] | None,
) -> jax.Array:
  """Maps images in [-1, 1] to those of weights with a mean and a deviation.

  Args:
    images: [B, height, width, channels].
    mean: of each channel, of images in [0, 1]; None returns the images.
    std: the standard deviation of each channel, likewise.

  Raises:
    ValueError: the images have another number of channels.
  """
  if mean is None:
    return images
  if not len(mean) == len(std) == images.shape[-1]:
    raise ValueError(
      f'image_mean={mean} and image_std={std} are not for images of'
      f' {images.shape[-1]} channels: set one number of each per channel.'
    )
  # 2 mean - 1 is the mean in [-1, 1].
  mean, std = (np.asarray(v, np.float64) for v in (mean, std))
  return (images - np.float32(2 * mean - 1)) * np.float32(0.5 / std)


def check_images(images: jax.Array) -> None:
  """Checks the rank and the dtype of a batch of images.

  Raises:
    ValueError: the images are not float [B, height, width, channels].
  """
  if images.ndim != 4 or not jnp.issubdtype(images.dtype, jnp.floating):
    raise ValueError(
      f'images are {images.dtype}{list(images.shape)}, expected float '
      '[batch, height, width, channels] in [-1, 1]: (x - 127.5) / 127.5 '
      'of uint8 pixels x.'
    )


def classify(
  representation: jax.Array,
  *,
  num_classes: int,
  head_bias: float,
  head_stddev: float = 0.0,
  name: str = 'head',
) -> jax.Array:
  """Maps [B, D] to logits [B, num_classes] in float32.

  Call it within an `nn.compact` method, whose module gets the layer.

  Args:
    representation: [B, D], any float dtype.
    num_classes: number of logits.
    head_bias: initial value of the bias.
    head_stddev: of the initial kernel, a normal distribution that is cut at two
      of these; the paper's starts at 0 (B.1.1).
    name: of the layer.
  """
  init = nn.initializers.zeros
  if head_stddev:
    init = nn.initializers.truncated_normal(head_stddev)
  return nn.Dense(
    num_classes,
    kernel_init=init,
    bias_init=nn.initializers.constant(head_bias),
    dtype=jnp.float32,
    # By default a TPU multiplies float32 in bfloat16.
    precision=jax.lax.Precision.HIGHEST,
    name=name,
  )(representation)


class Dropout(nn.Module):
  """Sets units to 0, and divides the others by the share that is kept.

  Attributes:
    rate: probability of zeroing, at least 0 and below 1.
    deterministic: change nothing; takes no random key.
  """

  rate: float
  deterministic: bool = False

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, ...] to the same shape and dtype."""
    if self.deterministic or self.rate == 0:
      return x
    numbers = 2**_BITS
    kept = max(1, round((1 - self.rate) * numbers))
    rows, *others = x.shape
    key = self.make_rng('dropout')
    with jax.named_scope('random_bits'):  # `vit_jax.plan` knows them by it.
      words = jax.random.bits(key, (-(-rows // _ROWS), *others), jnp.uint32)
      # Neighbouring rows share words: so the rows stay on their devices, and
      # the compiler needs no copy to bring them into order.
      shifts = jnp.arange(0, 32, _BITS, dtype=jnp.uint32)
      shifts = shifts.reshape(-1, *(1 for _ in others))
      drawn = (words[:, None] >> shifts) & (numbers - 1)
      mask = drawn.reshape(-1, *others)[:rows] < kept
    return jnp.where(mask, x * (numbers / kept), jnp.zeros_like(x))


def depth_rates(
  last: float, blocks: int, rule: str = 'linear'
) -> list[np.float32 | None]:
  """Returns the rates of stochastic depth.

  They grow linearly from 0 in the first block up to `last`, as in DeiT and
  timm. Differs from the paper (arXiv:1603.09382, Eq. 4), which gives the first
  of L blocks last / L. DeiT III (arXiv:2204.07118) has the same rate in all.

  Args:
    last: the rate of the last block, at least 0 and below 1.
    blocks: how many blocks there are. A single one has the linear rate 0.
    rule: 'linear', or 'uniform' for the same rate in all blocks.

  Returns:
    A rate for each block, or None, which is no stochastic depth, in place of 0.
  """
  first = last if rule == 'uniform' else 0
  return [rate or None for rate in np.linspace(first, last, blocks, dtype='f')]


def stochastic_depth(
  module: nn.Module, rate: jax.typing.ArrayLike | None, rows: int
) -> Callable[[jax.Array], jax.Array]:
  """Draws the examples that leave a residual branch out (arXiv:1603.09382).

  Call it within an `nn.compact` method. In the paper, a branch that survives
  with probability 1 - rate is multiplied by that in evaluations (Eq. 5). As in
  dropout, it is divided by it in training here, which has the same mean.

  Args:
    module: the calling module, from whose stream 'dropout' a key is taken.
    rate: the probability of leaving the branch out, below 1, also traced; None
      changes nothing, and takes no key.
    rows: B.

  Returns:
    A function that maps the branch's output [B, ...] to what is added, in the
    same shape and dtype: 0 for the drawn examples, else y / (1 - rate). Calling
    it twice draws no other examples.
  """
  if rate is None:
    return lambda y: y
  key = module.make_rng('dropout')
  with jax.named_scope('random_bits'):
    # Of 24 random bits: a rate of 0 leaves nothing out.
    kept = jax.random.uniform(key, (rows,)) >= rate

  def scaled(y):
    mask = kept.reshape(-1, *(1 for _ in y.shape[1:]))
    factor = jnp.asarray(1 / (1 - rate), y.dtype)
    return jnp.where(mask, y * factor, jnp.zeros_like(y))

  return scaled
