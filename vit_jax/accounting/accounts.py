"""The account of a model, by part."""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.extend import core

from vit_jax.accounting import parts, products, residuals

# A prime that divides no other dimension: what it divides grows with the batch.
_BATCH_SIZE = 65_537


@dataclasses.dataclass(frozen=True)
class Part:
  """One part of a model, or all its repetitions together.

  Attributes:
    name: path of the part's parameters, such as
      `Transformer/encoderblock_*/MlpBlock_0`; the model's class for what is in
      no module below it; `.../attention products` for the two products of
      attention that have no parameters, and the softmax between them.
    repeats: how many such parts there are. The figures below are of all.
    params: number of parameters.
    macs: multiply-accumulates of one image's forward pass.
    activation_bytes: kept of one image for the backward pass.
  """

  name: str
  repeats: int
  params: int
  macs: int
  activation_bytes: int


@dataclasses.dataclass(frozen=True)
class Account:
  """What a model costs at an image size; the totals are sums over the parts.

  Attributes:
    image_size: (height, width) in pixels.
    parts: in the order in which the forward pass is done with them.
  """

  image_size: tuple[int, int]
  parts: tuple[Part, ...]

  @property
  def params(self) -> int:
    """Number of parameters."""
    return sum(part.params for part in self.parts)

  @property
  def macs(self) -> int:
    """Multiply-accumulates of one image's forward pass."""
    return sum(part.macs for part in self.parts)

  @property
  def activation_bytes(self) -> int:
    """Bytes kept of one image between forward and backward pass."""
    return sum(part.activation_bytes for part in self.parts)


def account(
  model: nn.Module,
  image_size: int | tuple[int, int],
  channels: int = 3,
  *,
  padding: str = 'inside',
  levels: int | None = None,
) -> Account:
  """Counts what a model costs, from its trace.

  MACs are those of matrix products and convolutions that grow with the batch.
  Elementwise work is not in them: by XLA's count of operations it adds 0.4%
  to ViT-B/16 and 2.8% to BiT-R50x1 at 224 px.

  Activation memory is what JAX's reverse-mode differentiation of the logits
  with respect to the parameters hands from the forward to the backward pass
  of training, in the dtypes it has, each array once. Parameters and images
  are not in it, nor are arrays that do not grow with the batch, such as
  weights cast to bfloat16. It follows `remat` and `dtype`. A compiler keeps
  less where it recomputes cheap elementwise operations instead. What a
  gradient's memory grows by with each image is more, by the working space of
  the backward pass: XLA for CPUs needs 0.9 to 1.1 times this figure for ViT
  and BiT models in float32, but several times with `remat='full'`, where one
  block's activations are back for a while.

  Args:
    model: maps float images [B, height, width, channels], with a keyword
      argument `train`, to (logits, out), as those of `vit_jax.models.build`.
    image_size: side, or (height, width), in pixels.
    channels: of an image.
    padding: 'inside' counts the taps of a convolution only where they fall
      inside its input, as compilers do and as the paper's exaFLOPs need
      (Table 6, arXiv:2010.11929); 'all' counts those on the padding as well,
      the textbook's number.
    levels: how many levels of modules a part's name has at most; by default 3
      in the Transformer and 2 elsewhere, so that a Transformer block shows
      its parts and a ResNet its stages.

  Returns:
    The account. Blocks that repeat are one part.

  Raises:
    ValueError: unknown `padding`, `levels` below 1, the model refuses images
      of that size, or it has products of unknown number, as in a while loop.
  """
  _check(padding)
  if levels is not None and levels < 1:
    raise ValueError(f'levels is {levels}, expected at least 1.')
  shape = _image_shape(image_size, channels)
  forward, params = _trace_forward(model, shape)
  backward = _trace_kept(model, params, shape)
  tree = parts.PartTree(params, root=type(model).__name__, levels=levels)
  macs, kept = {}, {}
  for counts, found in (
    (macs, products.count(forward, padding)),
    (kept, residuals.count(backward)),
  ):
    for stack, number in found:
      name = tree.name(stack)
      # Anew at the end: in the order in which the parts are finished.
      counts[name] = counts.pop(name, 0) + _per_image(number)
  rows = (
    Part(
      name,
      repeats=tree.repeats(name),
      params=tree.params.get(name, 0),
      macs=macs.get(name, 0),
      activation_bytes=kept.get(name, 0),
    )
    for name in {**macs, **kept, **tree.params}
  )
  return Account(
    image_size=shape[1:3],
    parts=tuple(
      row for row in rows if row.params or row.macs or row.activation_bytes
    ),
  )


def forward_macs(
  model: nn.Module,
  image_size: int | tuple[int, int],
  channels: int = 3,
  *,
  padding: str = 'inside',
) -> int:
  """Returns `account(...).macs`, without the time that the rest takes."""
  _check(padding)
  jaxpr, _ = _trace_forward(model, _image_shape(image_size, channels))
  return sum(_per_image(n) for _, n in products.count(jaxpr, padding))


def exaflops(macs: float, examples: float, epochs: float) -> float:
  """Returns the exaFLOPs (1e18 operations) of a training run.

  Args:
    macs: of one image's forward pass, see `Account.macs`.
    examples: in the training set.
    epochs: passes over it.

  A multiply-accumulate is two operations, and forward and backward pass
  together are three times the forward pass. The paper does not say so, but
  its Table 6 (arXiv:2010.11929) follows it, at 224 px and 303e6 examples.
  """
  return macs * 2 * 3 * examples * epochs / 1e18


def _check(padding: str) -> None:
  choices = products.PADDINGS
  if padding not in choices:
    raise ValueError(
      f'padding is {padding!r}, expected one of {", ".join(choices)}.'
    )


def _image_shape(
  image_size: int | tuple[int, int], channels: int
) -> tuple[int, ...]:
  if isinstance(image_size, int):
    image_size = (image_size, image_size)
  return (_BATCH_SIZE, *image_size, channels)


def _per_image(number: int) -> int:
  """An image's share of a count; 0 of what does not grow with the batch."""
  share, rest = divmod(number, _BATCH_SIZE)
  return 0 if rest else share


def _trace_forward(
  model: nn.Module, shape: tuple[int, ...]
) -> tuple[core.Jaxpr, Mapping]:
  """Traces the forward pass of inference; also the parameters' shapes.

  The parameters are initialised in the same trace, to have one less. That
  has no matrix products, and would not grow with the batch.
  """
  images = jax.ShapeDtypeStruct(shape, jnp.float32)
  key = jax.eval_shape(jax.random.key, 0)

  def forward(key, images):
    (logits, _), variables = model.init_with_output(key, images, train=False)
    return logits, variables.get('params', {})

  jaxpr, (_, params) = jax.make_jaxpr(forward, return_shape=True)(key, images)
  return jaxpr.jaxpr, params


def _trace_kept(
  model: nn.Module, params: Mapping, shape: tuple[int, ...]
) -> core.Jaxpr:
  """Traces the forward pass of training; returns what the backward needs."""
  images = jax.ShapeDtypeStruct(shape, jnp.float32)
  key = jax.eval_shape(jax.random.key, 0)

  def kept(params, images, key):
    def forward(params):
      variables, rngs = {'params': params}, {'dropout': key}
      return model.apply(variables, images, train=True, rngs=rngs)[0]

    # The function that `vjp` returns is a tree, whose leaves are the arrays
    # it needs.
    return jax.vjp(forward, params)[1]

  return jax.make_jaxpr(kept)(params, images, key).jaxpr
