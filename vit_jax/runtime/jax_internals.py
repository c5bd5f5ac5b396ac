"""All uses of private interfaces of JAX, in one place.

This package needs three things without a public interface: the removal of
equations that nobody needs, JAX's cluster detection, and what JAX asks a GPU
before it lowers attention. A new release may change each without notice.
A test checks that no other module of this package imports private modules.

Checked with jax 0.10.0, 0.10.2 and 0.12.0.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core


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
