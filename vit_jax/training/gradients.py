"""The batch's mean loss and its gradient, on one device or on a mesh.

There are two ways to spread the work over a mesh (`Layout.partition`):

  compiler  The compiler splits the whole computation as the layout says. This
            works on any mesh. The gradient is summed over the devices after
            every micro-batch.
  manual    Each device computes its own rows with a whole copy of the
            parameters. The gradient is summed over the devices once a step, and
            each device keeps the part whose state it holds. The axis `tensor`
            is not supported. By the TPU compiler, a step of ViT-L/16 on 128
            cores of v3 takes 6% longer with the other way, and fast dropout
            (`dropout_rng='rbg'`) needs this one: the compiler generates a whole
            mask on every device.

`auto` is manual by default. It is the compiler's way if devices share the work
on a row (`tensor` above 1, or parameters that are gathered for each
micro-batch), or if the model has dropout or stochastic depth (by default it has
none) whose masks are the same on any mesh (`dropout_rng='threefry'`): see
`Layout.is_manual`.

Axes: `B` global batch, `A` accumulation steps. `sharding.BATCH` is the two axes
of the mesh, `data` and `fsdp`, that split the rows of a batch.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.experimental import layout as memory_layout
from jax.sharding import PartitionSpec as P

from vit_jax import sharding
from vit_jax.checkpoint import fingerprint
from vit_jax.losses.objective import Batch, MeanLoss, Metrics
from vit_jax.training.tuning import Tuning

# The metric that holds `fingerprint.word_sums` of each device's own gradient,
# before the sum over the devices: uint32 [devices, parameters that train].
WORD_SUMS = 'gradient_word_sums'
# `(params, batch, key) -> ((loss, metrics), gradients)`, of a batch or of a
# micro-batch.
LossAndGrad = Callable[
  [Any, Batch, jax.Array], tuple[tuple[jax.Array, Metrics], Any]
]


def make_loss_and_grad(
  mean_loss: MeanLoss,
  layout: sharding.Layout,
  *,
  manual: bool,
  accumulation_steps: int = 1,
  tuning: Tuning = Tuning(),  # noqa: B008 (It is immutable.)
  word_sums: bool = False,
) -> LossAndGrad:
  """Returns `f(params, batch, key) -> ((loss, metrics), gradients)`.

  These are the batch's mean loss and its gradient, which has only the
  parameters that train, and is split like the optimizer's state. Parameters
  split over `fsdp` are gathered once a step here, or by the compiler where a
  micro-batch needs them (`layout.gather`).

  With `accumulation_steps` A > 1, the batch is processed in A micro-batches of
  B/A rows, each with its own dropout key. Micro-batch a holds the rows a, a+A,
  a+2A, ..., so that each device already holds an equal part of every
  micro-batch.

  Args:
    mean_loss: see `losses.Objective`.
    layout: the mesh, and how the state is split over it.
    manual: which of the two ways to go, see `Layout.is_manual`.
    accumulation_steps: A.
    tuning: which parameters train; by default all.
    word_sums: whether the metrics get `WORD_SUMS`. Only the manual way has
      gradients of single devices.
  """

  def value_and_grad(params, batch, key):
    trained, frozen = tuning.split(params)

    def loss(trained):
      return mean_loss(tuning.plain(trained, frozen), batch, key)

    return jax.value_and_grad(loss, has_aux=True)(trained)

  if manual:
    return _manual(value_and_grad, accumulation_steps, layout, word_sums)
  return _by_compiler(value_and_grad, accumulation_steps, layout)


def _accumulate(
  value_and_grad: LossAndGrad,
  steps: int,
  place: Callable[[jax.Array], jax.Array] = lambda x: x,
) -> LossAndGrad:
  """Returns a function that averages `value_and_grad` over micro-batches.

  Args:
    value_and_grad: is called with each micro-batch.
    steps: A.
    place: splits the batch's arrays [A, B/A, ...] over the devices.
  """
  if steps == 1:
    return lambda params, batch, key: value_and_grad(
      params, batch, jax.random.fold_in(key, 0)
    )

  def split(x):  # [B, ...] -> [A, B/A, ...]
    x = x.reshape(-1, steps, *x.shape[1:])
    return place(jnp.moveaxis(x, 1, 0))

  def loss_and_grad(params, batch, key):
    def add_micro_batch(total, xs):
      index, rows = xs
      result = value_and_grad(params, rows, jax.random.fold_in(key, index))
      return jax.tree.map(jnp.add, total, result), None

    shapes = jax.eval_shape(
      value_and_grad, params, jax.tree.map(lambda x: split(x)[0], batch), key
    )
    zeros = jax.tree.map(
      lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32)),
      shapes,
    )
    total, _ = jax.lax.scan(
      add_micro_batch,
      zeros,
      (jnp.arange(steps), jax.tree.map(split, batch)),
    )
    return jax.tree.map(lambda x: x / steps, total)

  return loss_and_grad


def _by_compiler(
  value_and_grad: LossAndGrad, steps: int, layout: sharding.Layout
) -> LossAndGrad:
  def of_micro_batch(params, batch, key):
    if steps > 1 and layout.gather == 'micro_batch':
      # Without the barrier, the compiler moves the gathering out of the loop.
      params, batch = jax.lax.optimization_barrier((params, batch))
    with sharding.use_mesh(layout.mesh):
      result, grads = value_and_grad(params, batch, key)
    # Inside the loop, so that the accumulated sums are split like the state.
    return result, _placed(grads, layout.updates(grads))

  def place(x):
    with sharding.use_mesh(layout.mesh):
      return sharding.constrain(x, None, sharding.BATCH)

  def loss_and_grad(params, batch, key):
    if layout.gather == 'step':
      params = _placed(params, layout.gathered_params(params))
    return _accumulate(of_micro_batch, steps, place)(params, batch, key)

  return loss_and_grad


def _manual(
  value_and_grad: LossAndGrad,
  steps: int,
  layout: sharding.Layout,
  word_sums: bool,
) -> LossAndGrad:
  devices = layout.mesh.size
  on_tpu = layout.mesh.devices.flat[0].platform == 'tpu'

  def in_fast_layout(tree):  # In memory; no value changes.
    return jax.tree.map(_widest_last, tree) if on_tpu else tree

  def to_reduce_dtype(path, grad):
    narrow = devices > 1 and uses_reduce_dtype(path)
    return grad.astype(layout.reduce_dtype) if narrow else grad

  def on_a_device(params, batch, key):
    # Each device gets its own dropout key: it would have to generate a global
    # mask as a whole.
    key = jax.random.fold_in(key, jax.lax.axis_index(sharding.BATCH))
    params = in_fast_layout(params)
    result, grads = _accumulate(value_and_grad, steps)(params, batch, key)
    grads = jax.tree_util.tree_map_with_path(to_reduce_dtype, grads)
    grads = in_fast_layout(grads)
    # [1, parameters], the part of one device.
    sums = {WORD_SUMS: fingerprint.word_sums(grads)[None]} if word_sums else {}
    return (
      jax.lax.pmean(result, sharding.BATCH),
      sums,
      jax.lax.psum(grads, sharding.BATCH),
    )

  def loss_and_grad(params, batch, key):
    (loss, metrics), sums, grads = jax.shard_map(
      on_a_device,
      mesh=layout.mesh,
      in_specs=(P(), P(sharding.BATCH), P()),
      out_specs=(P(), P(sharding.BATCH), P()),
      check_vma=False,  # With the check, JAX inserts sums of its own.
    )(_placed(params, layout.gathered_params(params)), batch, key)
    # `psum`, and then each device's part of the sum. `psum_scatter` compiles to
    # the same program on TPU v3.
    grads = _placed(grads, layout.updates(grads))
    return (loss, metrics | sums), jax.tree.map(
      lambda g: g.astype(jnp.promote_types(g.dtype, jnp.float32)) / devices,
      grads,
    )

  return loss_and_grad


def _widest_last(x: jax.Array) -> jax.Array:
  """Makes the widest dimension of an array the minor one in device memory.

  Without this layout, the TPU compiler chooses one that suits the part that a
  device keeps, and the matmuls for the gradients of the attention kernels take
  1.7 times as long. A step of ViT-L/16 of depth 2 on 32 cores of v3 takes 119
  instead of 108 ms.
  """
  if x.ndim < 3:
    return x
  widest = max(range(x.ndim), key=lambda i: (x.shape[i], i))
  order = [i for i in range(x.ndim) if i != widest] + [widest]
  return memory_layout.with_layout_constraint(
    x, memory_layout.Layout(tuple(order))
  )


def uses_reduce_dtype(path: tuple[Any, ...]) -> bool:
  """Whether a parameter's gradients are summed in `layout.reduce_dtype`.

  Only kernels of matmuls in the model's dtype are worth narrowing. The other
  gradients are small, and are sums over the batch already. The class heads
  compute in float32.

  Args:
    path: the parameter's path, from `jax.tree_util.tree_map_with_path`.
  """
  return path[-1].key == 'kernel' and not path[0].key.startswith('head')


def has_global_dropout(model: nn.Module, dropout_key: jax.Array) -> bool:
  """Whether dropout's masks are drawn, and must not depend on the mesh."""
  rates = ('dropout_rate', 'stochastic_depth')
  draws = any(getattr(model, rate, 0.0) > 0 for rate in rates)
  return draws and 'threefry' in str(jax.random.key_impl(dropout_key))


def _placed(tree: Any, shardings: Any) -> Any:
  return jax.tree.map(jax.lax.with_sharding_constraint, tree, shardings)
