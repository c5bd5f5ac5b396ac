"""The account of a model, by the parts that its parameters' names tell."""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
from jax.extend import core

from vit_jax.accounting import traces
from vit_jax.models import mae

# A prime that divides no other dimension: counts that it divides grow with the
# batch.
_BATCH_SIZE = 65_537

# Names the work of an attention module that is in none of its submodules.
PRODUCTS = 'attention products'

# Modules that a model repeats. Blocks that a scan stacks have no number.
_REPEATED = ((r'encoderblock(_\d+)?', 'encoderblock_*'), (r'unit\d+', 'unit*'))

# The halves of an axial block do not count as a level.
_HALVES = ('row', 'column')


@dataclasses.dataclass(frozen=True)
class Part:
  """One part of a model, together with all its repetitions.

  Attributes:
    name: path of the part's parameters, such as
      `Transformer/encoderblock_*/MlpBlock_0`. The model's class names what is
      in no submodule. `.../attention products` names the two products of
      attention without parameters and the softmax between them.
    params: number of parameters of all repetitions.
    macs: multiply-accumulates of one image's forward pass in all repetitions.
  """

  name: str
  params: int
  macs: int


@dataclasses.dataclass(frozen=True)
class Account:
  """The cost of a model at an image size.

  Attributes:
    parts: the parts, in the order in which the forward pass finishes them.
    backward_macs: multiply-accumulates of one image's backward pass: as many as
      two forward passes, or a count if only some parameters train.
    activation_bytes: bytes kept of one image between forward and backward pass.
  """

  parts: tuple[Part, ...]
  backward_macs: int
  activation_bytes: int

  @property
  def params(self) -> int:
    """Number of parameters."""
    return sum(part.params for part in self.parts)

  @property
  def macs(self) -> int:
    """Multiply-accumulates of one image's forward pass."""
    return sum(part.macs for part in self.parts)


def _part_of(stack: str, params: Mapping) -> str:
  """Returns the part that an equation belongs to.

  Args:
    stack: the equation's name stack, such as
      `jvp(ViT)/Transformer/encoderblock_0/LayerNorm_0`. It mixes the names of
      modules, transformations, functions and einsums; this function uses only
      names that lead further down the tree of parameters.
    params: the model's parameters, arrays or their shapes.
  """
  path, tree = (), params
  for word in re.split('[/()]', stack):
    if isinstance(tree.get(word), Mapping):
      path, tree = (*path, word), tree[word]
  if path and 'attention' in path[-1].lower():
    path = (*path[:-1], PRODUCTS)
  return _part_at(path)


def _part_at(path: tuple[str, ...]) -> str:
  """Returns the part at a path of modules; '' for the model itself."""
  # This shows the parts of a Transformer block and the stages of a ResNet.
  levels = 3 if path[:1] == ('Transformer',) else 2
  words = path[: levels + sum(word in _HALVES for word in path[:levels])]
  for pattern, common in _REPEATED:
    words = [re.sub(f'^{pattern}$', common, word) for word in words]
  return '/'.join(words)


def account(
  model: nn.Module,
  image_size: int | tuple[int, int],
  channels: int = 3,
  *,
  trained: Callable[[str], bool] | None = None,
) -> Account:
  """Counts what a model costs, from its trace.

  The MACs cover matrix products and convolutions that grow with the batch, but
  no elementwise work. Of a convolution's taps, only those inside its input
  count, as compilers do and as the paper's exaFLOPs need (Table 6). By XLA's
  count of operations, elementwise work adds 0.4% to ViT-B/16 and 2.8% to
  BiT-R50x1 at 224 px.

  The activation memory covers the arrays that the forward pass of training
  keeps for the backward pass when JAX differentiates the logits with respect to
  the parameters. Each array counts once, in its own dtype, so the figure
  follows `remat` and `dtype`. It excludes parameters, images and arrays that do
  not grow with the batch, such as weights cast to bfloat16. A compiler that
  recomputes cheap elementwise operations keeps less. The memory of a gradient
  also grows with each image by the working space of the backward pass. XLA for
  CPUs needs 0.9 to 1.1 times this figure for ViT and BiT models in float32, but
  several times with `remat='full'`, which recomputes one block's activations.

  Args:
    model: maps float images [B, height, width, channels], with a keyword
      argument `train`, to (logits, out), like models of `vit_jax.models.build`.
    image_size: side, or (height, width), in pixels.
    channels: channels of an image.
    trained: whether a parameter of a name such as `head/kernel` trains; the
      backward pass is that of these. None for all.

  Returns:
    The account. Repeated blocks are one part.

  Raises:
    ValueError: the model refuses images of that size, or the trace does not
      tell the number of products, as in a while loop.
  """
  shape = _image_shape(image_size, channels)
  forward, params = _trace_forward(model, shape)
  kept_only = _trace_backward(model, params, shape, trained, whole=False)
  sizes = collections.Counter()
  for path, x in flax.traverse_util.flatten_dict(dict(params)).items():
    sizes[_part_at(path[:-1])] += x.size
  macs, part_of = {}, functools.cache(lambda stack: _part_of(stack, params))
  for stack, number in traces.products(forward):
    name = part_of(stack)
    # Move the part to the end, to list parts in the order they are finished.
    macs[name] = macs.pop(name, 0) + _per_image(number)
  forward_macs = sum(macs.values())
  backward_macs = 2 * forward_macs
  if trained is not None:
    # What `remat` recomputes does not count.
    plain = model.clone(remat='none') if hasattr(model, 'remat') else model
    both = _trace_backward(plain, params, shape, trained, whole=True)
    backward_macs = (
      sum(_per_image(n) for _, n in traces.products(both)) - forward_macs
    )
  counted = tuple(
    Part(name or type(model).__name__, sizes[name], macs.get(name, 0))
    for name in {**macs, **sizes}
    if sizes[name] or macs.get(name)
  )
  kept = sum(map(_per_image, traces.residuals(kept_only)))
  return Account(counted, backward_macs, kept)


def forward_macs(
  model: nn.Module,
  image_size: int | tuple[int, int],
  channels: int = 3,
) -> int:
  """Returns `account(...).macs`, faster than `account` does."""
  jaxpr, _ = _trace_forward(model, _image_shape(image_size, channels))
  return sum(_per_image(n) for _, n in traces.products(jaxpr))


def exaflops(macs: float, examples: float, epochs: float) -> float:
  """Returns the exaFLOPs (1e18 operations) of a training run.

  Args:
    macs: multiply-accumulates of one image's forward pass, see `Account.macs`.
    examples: number of examples in the training set.
    epochs: passes over the training set.

  A multiply-accumulate counts as two operations, and the forward and backward
  pass together as three forward passes. The paper does not state this rule, but
  its Table 6 (arXiv:2010.11929) follows it, at 224 px and 303e6 examples.
  """
  return macs * 2 * 3 * examples * epochs / 1e18


def _image_shape(
  image_size: int | tuple[int, int], channels: int
) -> tuple[int, ...]:
  if isinstance(image_size, int):
    image_size = (image_size, image_size)
  return (_BATCH_SIZE, *image_size, channels)


def _per_image(number: int) -> int:
  """Returns an image's share of a count; 0 if the batch does not matter."""
  share, rest = divmod(number, _BATCH_SIZE)
  return 0 if rest else share


def _trace_forward(
  model: nn.Module, shape: tuple[int, ...]
) -> tuple[core.Jaxpr, Mapping]:
  """Traces the forward pass of inference and the parameters' shapes.

  The same trace initialises the parameters, which saves a second trace.
  Initialisation has no matrix products and does not grow with the batch.
  """
  images = jax.ShapeDtypeStruct(shape, jnp.float32)
  key = jax.eval_shape(jax.random.key, 0)

  def forward(key, images, given):
    (logits, _), variables = model.init_with_output(
      key, images, train=False, **given
    )
    return logits, variables.get('params', {})

  jaxpr, (_, params) = jax.make_jaxpr(forward, return_shape=True)(
    key, images, _given(model, shape)
  )
  return jaxpr.jaxpr, params


def _given(
  model: nn.Module, shape: tuple[int, ...]
) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns what a masked autoencoder is given: which patches it hides."""
  if not isinstance(getattr(model, 'decoder', None), mae.Sizes):
    return {}
  patches = math.prod(model.token_grid(shape[1:3]))
  return {'source': jax.ShapeDtypeStruct((shape[0], patches), jnp.int32)}


def _trace_backward(
  model: nn.Module,
  params: Mapping,
  shape: tuple[int, ...],
  trained: Callable[[str], bool] | None,
  *,
  whole: bool,
) -> core.Jaxpr:
  """Traces the forward pass of training, and what follows.

  Args:
    model: see `account`.
    params: the shapes of its parameters.
    shape: the shape of the images.
    trained: see `account`.
    whole: whether to trace the whole backward pass; if not, the results are the
      arrays that it needs.
  """
  images = jax.ShapeDtypeStruct(shape, jnp.float32)
  key = jax.eval_shape(jax.random.key, 0)
  flat = flax.traverse_util.flatten_dict(dict(params), sep='/')
  varied = {n: x for n, x in flat.items() if trained is None or trained(n)}
  fixed = {n: x for n, x in flat.items() if n not in varied}

  def run(varied, fixed, images, key, given):
    def forward(varied):
      tree = flax.traverse_util.unflatten_dict(fixed | varied, sep='/')
      variables, rngs = {'params': tree}, {'dropout': key}
      return model.apply(variables, images, train=True, rngs=rngs, **given)[0]

    logits, backward = jax.vjp(forward, varied)
    # The function that `vjp` returns is a tree; its leaves are the arrays that
    # the backward pass needs.
    return backward(jnp.ones_like(logits)) if whole else backward

  given = _given(model, shape)
  return jax.make_jaxpr(run)(varied, fixed, images, key, given).jaxpr
