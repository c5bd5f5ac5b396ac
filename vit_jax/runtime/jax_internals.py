"""All uses of private interfaces of JAX, in one place.

This package needs four things without a public interface: the parameters and
name stacks of the equations of a trace, the removal of equations that nobody
needs, JAX's cluster detection, and what JAX asks a GPU before it lowers
attention. A new release may change each of them without notice. A test checks
that no other module of this package uses them.

Checked with jax 0.10.0, 0.10.2 and 0.12.0.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend import core


@dataclasses.dataclass(frozen=True)
class Convolution:
  """The parameters of a convolution.

  Attributes:
    padding: (before, after) of each spatial dimension.
    strides: window strides, one per spatial dimension.
    input_steps: dilation of the input, one per spatial dimension.
    kernel_steps: dilation of the kernel, one per spatial dimension.
    input_dimensions: indices of the batch, feature and spatial dimensions.
    kernel_dimensions: indices of the output-feature, input-feature and spatial
      dimensions.
    output_dimensions: like `input_dimensions`.
  """

  padding: Sequence[tuple[int, int]]
  strides: Sequence[int]
  input_steps: Sequence[int]
  kernel_steps: Sequence[int]
  input_dimensions: Sequence[int]
  kernel_dimensions: Sequence[int]
  output_dimensions: Sequence[int]


# ---- Traces ------------------------------------------------------------------


def run_op_by_op(function: Callable[..., Any], *args: Any) -> Any:
  """Returns `function(*args)`; each distinct operation compiles by itself.

  That takes much less time than one program for all, if the same operations
  occur many times. Operations that the result does not need are left out. Those
  that are jitted within the function compile at a lower level of optimisation:
  for random numbers on a CPU, that takes a quarter of the time.

  Args:
    function: can be traced.
    *args: trees of arrays.
  """
  closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
  from jax.interpreters.partial_eval import dce_jaxpr

  jaxpr, _ = dce_jaxpr(
    closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True
  )
  name, options = 'xla_backend_optimization_level', 'compiler_options_kvs'
  eqns = jaxpr.eqns
  if name not in os.environ.get('XLA_FLAGS', ''):
    eqns = [
      eqn.replace(params=eqn.params | {options: ((name, 1),)})
      if options in eqn.params
      else eqn
      for eqn in eqns
    ]
  run = core.jaxpr_as_fun(
    core.ClosedJaxpr(jaxpr.replace(eqns=eqns), closed.consts)
  )
  return jax.tree.unflatten(
    jax.tree.structure(shapes), run(*jax.tree.leaves(args))
  )


def name_stack(eqn: core.JaxprEqn) -> str:
  """Returns an equation's modules and scopes, joined by `/`."""
  return str(eqn.source_info.name_stack)


def called(eqn: core.JaxprEqn) -> Iterator[core.Jaxpr]:
  """Yields the functions that an equation calls, without their constants."""
  values = eqn.params.values()
  for value in values:
    for item in value if isinstance(value, tuple | list) else (value,):
      # Up to JAX 0.10, a jaxpr with constants has its own class, ClosedJaxpr.
      if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
        yield getattr(item, 'jaxpr', item)


def trips(scan: core.JaxprEqn) -> int:
  """Returns how often a `scan` runs its body."""
  return scan.params['length']


def carried(scan: core.JaxprEqn, body: core.Jaxpr) -> tuple[int, int]:
  """Returns how many constants and how many carried values a `scan` has.

  The arguments of a scan are constants, carried values and sliced arrays; its
  results are carried values and stacked arrays. In the body, the sliced and
  stacked arrays have one dimension less, which identifies them.

  Args:
    scan: the equation.
    body: the function that it calls.
  """

  def whole(outer, inner):
    return sum(
      out.aval.ndim == within.aval.ndim
      for out, within in zip(outer, inner, strict=True)
    )

  carry = whole(scan.outvars, body.outvars)
  return whole(scan.invars, body.invars) - carry, carry


def contracted(product: core.JaxprEqn) -> Sequence[int]:
  """Returns the left operand's dimensions that a `dot_general` sums over."""
  (left, _), _ = product.params['dimension_numbers']
  return left


def convolution(eqn: core.JaxprEqn) -> Convolution:
  """Returns the parameters of a `conv_general_dilated`."""
  numbers = eqn.params['dimension_numbers']
  return Convolution(
    padding=eqn.params['padding'],
    strides=eqn.params['window_strides'],
    input_steps=eqn.params['lhs_dilation'],
    kernel_steps=eqn.params['rhs_dilation'],
    input_dimensions=numbers.lhs_spec,
    kernel_dimensions=numbers.rhs_spec,
    output_dimensions=numbers.out_spec,
  )


# ---- Clusters ----------------------------------------------------------------


def detect_cluster(
  address: str | None,
  num_processes: int | None,
  process_id: int | None,
  timeout: int,
) -> tuple[str | None, int | None, int | None, Sequence[int] | None]:
  """Asks the cluster for this process's place in it.

  `jax.distributed.initialize` does the same, but does not tell what it found,
  and starts a service for a single process, too.

  Args:
    address: HOST:PORT of process 0, if known; the same for the next two.
    num_processes: the number of processes.
    process_id: the id of this process.
    timeout: seconds to wait until the name of process 0's host exists.

  Returns:
    The three, completed, and this process's local devices. Each is None if it
    is unknown, or if there is no cluster.

  Raises:
    Exception: any error of JAX's code for that cluster.
  """
  from jax._src import clusters

  detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
  return detect(address, num_processes, process_id, None, None, timeout)


# ---- GPUs that are not here --------------------------------------------------


def assume_gpu(capability: tuple[int, int]) -> None:
  """Lets this process lower the attention of cuDNN without a GPU.

  JAX asks this process's first GPU what it can do, even if it compiles for
  another one.

  Args:
    capability: compute capability of the GPUs to compile for.
  """
  from jax._src.cudnn import fused_attention_stablehlo as module

  _ = module.check_compute_capability, module.is_cuda_compute_capability_equal

  def parsed(text):
    return tuple(map(int, text.split('.')))

  module.check_compute_capability = lambda text: capability >= parsed(text)
  module.is_cuda_compute_capability_equal = lambda text: (
    capability == parsed(text)
  )
