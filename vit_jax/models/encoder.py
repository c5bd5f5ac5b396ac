"""The Transformer encoder: blocks of attention and MLP (Eqs. 2-4).

Axes: B batch, L tokens, D width.
"""

import contextlib
import dataclasses
import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vit_jax import sharding
from vit_jax.models import attention, lanes, position
from vit_jax.models.model_options import Options
from vit_jax.models.shared import (
  REMAT_POLICIES,
  Dropout,
  depth_rates,
  stochastic_depth,
)


def layer_norm(options: Options, name: str) -> nn.Module:
  """Returns `attention.norm` with the bias of `options`."""
  return attention.norm(options, name, bias=options.norm_bias)


class MlpBlock(nn.Module):
  """Dense, GELU, Dense; dropout after the GELU and at the end.

  With `mlp='swiglu'` (arXiv:2002.05202, Eq. 6), the layer `gate` has the shape
  of `Dense_0`, and SiLU(gate(x)) * Dense_0(x) replaces the GELU's output. These
  are `fc1_g`, `fc1_x` and `fc2` of timm's SwiGLU, the gate, up and down
  projection of transformers', and the halves of DINOv2's packed `w12`, in this
  order, and its `w3`. The hidden layer is `mlp_dim` wide: DINOv2 has about two
  thirds of what it gives a GELU, 4096 for a width of 1536.

  With cuDNN's attention, the backward pass reads the GELU's input only.
  Otherwise, on GPUs, the forward pass writes a second array for it, as large as
  the hidden layer: by the compiler, 3.8 GB for ViT-B/16 at batch 256, and 8% of
  a step's traffic.

  Attributes:
    options: see `Options`.
  """

  options: Options

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
    """Maps [B, L, D] to [B, L, D]."""
    options = self.options
    dense = functools.partial(
      nn.Dense,
      kernel_init=nn.initializers.xavier_uniform(),
      bias_init=nn.initializers.normal(1e-6),
      dtype=options.dtype,
    )
    dropout = functools.partial(
      Dropout, options.dropout_rate, deterministic=not train
    )
    width = x.shape[-1]
    gated = options.mlp == 'swiglu'
    hidden = [
      sharding.constrain(
        dense(options.mlp_dim, name=name)(x),
        *(sharding.BATCH, None, sharding.TENSOR),
      )
      for name in (('Dense_0', 'gate') if gated else ('Dense_0',))
    ]  # [B, L, mlp_dim] each.
    activation = functools.partial(nn.gelu, approximate=options.gelu == 'tanh')
    if options.gelu == 'quick':
      activation = _quick_gelu
    if gated:
      activation = _swiglu
    recompute = options.attention_implementation == 'cudnn'
    x = (jax.checkpoint(activation) if recompute else activation)(*hidden)
    x = dropout()(x)
    x = dense(width, name='Dense_1')(x)  # [B, L, D]
    return dropout()(x)


def _quick_gelu(x: jax.Array) -> jax.Array:
  return x * nn.sigmoid(1.702 * x)


def _swiglu(x: jax.Array, gate: jax.Array) -> jax.Array:
  return nn.silu(gate) * x


class EncoderBlock(nn.Module):
  """A Transformer block (Eqs. 2 and 3, or parallel, or post-LayerNorm).

  Attributes:
    options: see `Options`.
    axis: see `attention.MultiHeadDotProductAttention`.
    tokens: how many of the rows are tokens, None if all are. cuDNN's attention
      has more rows, which follow the tokens.
  """

  options: Options
  axis: str = 'all'
  tokens: int | None = None

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    *,
    grid: tuple[int, int],
    train: bool,
    skip_rate: jax.typing.ArrayLike | None = None,
  ) -> jax.Array:
    """Maps [B, L, D] to [B, L, D].

    Args:
      x: the tokens.
      grid: (rows, columns) of the patches.
      train: whether dropout is on.
      skip_rate: the rate of `stochastic_depth`. Attention and MLP are left out
        independently, but together if they are parallel.
    """
    options = self.options

    def norm(position, index, x):
      """Normalises tokens if this is where the block does so."""
      if position != options.norm_position:
        return x
      name = f'{"RMS" if options.norm == "rms" else "Layer"}Norm_{index}'
      return layer_norm(options, name)(x)

    def scaled(index, y):
      """Multiplies a branch's output by LayerScale (arXiv:2103.17239)."""
      if options.layer_scale is None:
        return y
      init = nn.initializers.constant(options.layer_scale)
      scale = self.param(f'layer_scale_{index}', init, y.shape[-1:])
      return y * scale.astype(y.dtype)

    if options.position_site == 'every_layer':
      x += position_table(options, x, grid, self.tokens)
    normed = norm('pre', 0, x)
    y = attention.MultiHeadDotProductAttention(
      options, self.axis, self.tokens, name='MultiHeadDotProductAttention_0'
    )(normed, grid=grid)
    y = scaled(0, Dropout(options.dropout_rate, deterministic=not train)(y))
    skip = stochastic_depth(self, skip_rate, x.shape[0])
    x = norm('post', 0, x + skip(y))
    if not options.parallel:
      normed = norm('pre', 1, x)
      skip = stochastic_depth(self, skip_rate, x.shape[0])
    y = scaled(1, MlpBlock(options, name='MlpBlock_0')(normed, train=train))
    return norm('post', 1, x + skip(y))


class AxialBlock(nn.Module):
  """A block within the rows, then one within the columns (§D.6).

  Position embeddings of a layer are added once, before the rows.

  Attributes:
    options: see `Options`.
  """

  options: Options

  @nn.compact
  def __call__(
    self, x: jax.Array, *, grid: tuple[int, int], **options: Any
  ) -> jax.Array:
    """Maps [B, rows * columns, D] to the same shape; see `EncoderBlock`."""
    if self.options.position_site == 'every_layer':
      x += position_table(self.options, x, grid)
    halves = dataclasses.replace(self.options, position_site='stem')
    for axis in ('row', 'column'):
      x = EncoderBlock(halves, axis, name=axis)(x, grid=grid, **options)
    return x


def position_table(
  options: Options,
  x: jax.Array,
  grid: tuple[int, int],
  tokens: int | None = None,
) -> jax.Array:
  """Returns position embeddings, of a new submodule `posembed_input`.

  Call it within an `nn.compact` method, whose module gets the submodule.

  Args:
    options: its `position_embedding` is one of `position.ADDED`.
    x: [B, L, D] tokens.
    grid: (rows, columns) of the patches; all other tokens come before them.
    tokens: see `EncoderBlock`.

  Returns:
    [1, L, D] in the tokens' dtype; zeros for tokens without a position, and for
    rows after the tokens.
  """
  _, length, width = x.shape
  others = (tokens or length) - math.prod(grid)
  before = others - options.registers if options.class_position else 0
  table = position.Table(
    options.position_embedding,
    options.position_stddev,
    options.position_grid,
    name='posembed_input',
  )(grid=grid, num_prefix_tokens=before, width=width)
  if others > before:
    own, patches = jnp.split(table, [before], axis=1)
    own = _with_rows(own, others)
    table = jnp.concatenate([own, patches], axis=1)
  return _with_rows(table.astype(x.dtype), length)


def _with_rows(x: jax.Array, length: int) -> jax.Array:
  """Appends rows of zeros: [B, L, D] -> [B, length, D]."""
  if x.shape[1] == length:  # It may be symbolic, in an exported model.
    return x
  return jnp.pad(x, [(0, 0), (0, length - x.shape[1]), (0, 0)])


def _keep_row_major(call, args, kwargs, context):
  """Holds the layout of what norms and dense layers read and return.

  It suits cuDNN's attention. Otherwise XLA's compiler for GPUs writes
  transposed copies for the gradients of the weights: a prototype's step of
  ViT-B/16 took 82 instead of 71 ms on an H100.
  """
  if context.method_name != '__call__' or not isinstance(
    context.module, (nn.Dense, nn.DenseGeneral, nn.LayerNorm, nn.RMSNorm)
  ):
    return call(*args, **kwargs)
  keep = sharding.per_shard(lanes.row_major, sharding.BATCH)
  return keep(call(*map(keep, args), **kwargs))


class Encoder(nn.Module):
  """Position embedding, the blocks, and the final LayerNorm (Eqs. 1-4).

  Post-LayerNorm blocks end with a LayerNorm, so no other one follows the last.
  Nor does one if `final_norm` is 'pooled'.

  Attributes:
    options: see `Options`.
  """

  options: Options

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    *,
    grid: tuple[int, int],
    train: bool,
    visible: jax.Array | None = None,
  ) -> dict[str, jax.Array]:
    """Encodes tokens.

    Args:
      x: [B, L, D] tokens, the class token first if there is one; registers
        directly before the patches.
      grid: (rows, columns) of the patch tokens.
      train: whether dropout and stochastic depth are on.
      visible: int32 [B, V], the patches to encode, of which each has its own
        position; None for all. The class token is always encoded.

    Returns:
      `embedded`, the first block's input, and `encoded`, the output of the
      last LayerNorm or block, both [B, L, D].
    """
    options = self.options
    x = sharding.constrain(x, sharding.BATCH)
    at_every_input = None  # [1, L, D]
    if options.position_embedding in position.ADDED:
      if options.position_site == 'stem':
        x = x + position_table(options, x, grid)
      elif options.position_site == 'every_layer_shared':
        at_every_input = position_table(options, x, grid)
    if visible is not None:
      first = x.shape[1] - math.prod(grid)  # The first patch.
      patches = jnp.take_along_axis(x[:, first:], visible[..., None], axis=1)
      x = jnp.concatenate([x[:, :first], patches], axis=1)
    # Dropout directly follows the position embedding (B.1). If every layer adds
    # one, the paper leaves the place open; dropout then stays here, once.
    x = Dropout(options.dropout_rate, deterministic=not train)(x)
    if options.embedding_norm:
      x = layer_norm(options, 'embedding_norm')(x)
    out = {'embedded': x}
    x = self._run_blocks(x, at_every_input, grid=grid, train=train)
    if (options.norm_position, options.final_norm) == ('pre', 'tokens'):
      x = layer_norm(options, 'encoder_norm')(x)
    out['encoded'] = x
    return out

  def _run_blocks(
    self,
    x: jax.Array,
    at_every_input: jax.Array | None,
    *,
    grid: tuple[int, int],
    train: bool,
  ) -> jax.Array:
    options, tokens = self.options, x.shape[1]
    axial = options.attention == 'axial'
    if axial or options.relative:
      options = dataclasses.replace(options, attention_implementation='plain')
    implementation = options.attention_implementation
    length = attention.padded_length(implementation, tokens)
    x = _with_rows(x, length)
    if at_every_input is not None:
      at_every_input = _with_rows(at_every_input, length)

    def run_block(block, x, added, skip_rate):
      x = x if added is None else x + added
      x = block(x, grid=grid, train=train, skip_rate=skip_rate)
      return sharding.constrain(x, sharding.BATCH)

    if options.remat != 'none':
      run_block = nn.remat(
        run_block,
        policy=REMAT_POLICIES[options.remat],
        prevent_cse=not options.scan,  # A scan's body prevents it already.
      )
    block = functools.partial(EncoderBlock, options, tokens=tokens)
    if axial:
      block = functools.partial(AxialBlock, options)
    rates = depth_rates(
      options.stochastic_depth if train else 0,
      options.depth,
      options.stochastic_depth_rule,
    )
    layouts = contextlib.nullcontext()
    tensor = jax.sharding.get_abstract_mesh().shape.get(sharding.TENSOR, 1)
    if implementation == 'cudnn' and tensor == 1:
      layouts = nn.intercept_methods(_keep_row_major)
    with layouts:
      if options.scan:
        stacked = jnp.array([r or 0 for r in rates]) if any(rates) else None
        x, _ = nn.scan(
          lambda block, x, *inputs: (run_block(block, x, *inputs), None),
          variable_axes={'params': 0},
          split_rngs={'params': True, 'dropout': True},
          in_axes=(nn.broadcast, 0),
          length=options.depth,
        )(block(name='encoderblock'), x, at_every_input, stacked)
      else:
        for i, rate in enumerate(rates):
          block_i = block(name=f'encoderblock_{i}')
          x = run_block(block_i, x, at_every_input, rate)
    return x[:, :tokens]


def unstack_blocks(params: dict) -> dict:
  """Converts the parameters of `scan=True` to those of unrolled blocks.

  Args:
    params: a `ViT`'s parameters, with the blocks' arrays stacked to
      [depth, ...] under `Transformer/encoderblock/...`, and so in a `decoder`.

  Returns:
    The same parameters, as `Transformer/encoderblock_{i}/...`.
  """
  if 'decoder' in params:
    params = {**params, 'decoder': unstack_blocks(params['decoder'])}
  encoder = dict(params['Transformer'])
  stacked = encoder.pop('encoderblock')
  for i in range(len(jax.tree.leaves(stacked)[0])):
    encoder[f'encoderblock_{i}'] = jax.tree.map(lambda a, i=i: a[i], stacked)
  return {**params, 'Transformer': encoder}
