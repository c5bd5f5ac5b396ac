"""All ties to what JAX and Orbax do not promise to keep, in one place.

Three things that this package needs have no public interface: what the
equations of a trace hold (their parameters and name stacks), how JAX finds a
cluster, and what Orbax does at a save. A new release may change each without
notice. So nothing else in this package reads them; a test sees to it. Where the
first two no longer fit, a `ChangedError` names the versions.

Checked with jax 0.10.0, 0.10.2 and 0.12.0.
"""

import contextlib
import dataclasses
import types
from collections.abc import Iterator, Sequence

import jax
from jax.extend import core

_CHECKED = 'jax 0.10.0, 0.10.2 and 0.12.0'


class ChangedError(ValueError):
  """The installed JAX is not as this package knows it."""

  def __init__(self, what: str):
    super().__init__(
      f'{what} in jax {jax.__version__}. This package was checked with'
      f' {_CHECKED}: install one of these, or a newer version of this package.'
    )


@dataclasses.dataclass(frozen=True)
class Convolution:
  """The parameters of a convolution.

  Attributes:
    padding: (before, after) of each spatial dimension.
    strides: of the kernel's places, for each spatial dimension.
    input_steps: from one input value to the next; others between are zeros.
    kernel_steps: likewise of the kernel's values.
    input_dimensions: places of batch, features and the spatial dimensions.
    kernel_dimensions: of output features, input features, spatial dimensions.
    output_dimensions: as `input_dimensions`.
  """

  padding: Sequence[tuple[int, int]]
  strides: Sequence[int]
  input_steps: Sequence[int]
  kernel_steps: Sequence[int]
  input_dimensions: Sequence[int]
  kernel_dimensions: Sequence[int]
  output_dimensions: Sequence[int]


# ---- Traces ------------------------------------------------------------------


def name_stack(eqn: core.JaxprEqn) -> str:
  """The modules and scopes that an equation comes from, joined by `/`."""
  with _changed('An equation has no name stack'):
    return str(eqn.source_info.name_stack)


def called(eqn: core.JaxprEqn) -> Iterator[core.Jaxpr]:
  """Yields the functions that an equation calls, without their constants."""
  with _changed('An equation has no parameters'):
    values = eqn.params.values()
  for value in values:
    for item in value if isinstance(value, tuple | list) else (value,):
      # Until 0.10 one with its constants is of another class.
      if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
        yield getattr(item, 'jaxpr', item)


def trips(scan: core.JaxprEqn) -> int:
  """How often a `scan` runs its body."""
  with _changed('The number of iterations of a scan is not known'):
    return scan.params['length']


def carried(scan: core.JaxprEqn, body: core.Jaxpr) -> tuple[int, int]:
  """How many constants and how many carried values a `scan` has.

  Its arguments are constants, carried values and what is read slice by slice;
  its results are carried values and what is stacked. Slices have a dimension
  less in the body, which tells them apart.

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
  """The dimensions of a `dot_general`'s left operand that are summed over."""
  with _changed('The contracted dimensions of a product are not known'):
    (left, _), _ = product.params['dimension_numbers']
    return left


def convolution(eqn: core.JaxprEqn) -> Convolution:
  """The parameters of a `conv_general_dilated`."""
  with _changed('The parameters of a convolution are not known'):
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


def clusters() -> types.ModuleType:
  """JAX's detection of clusters, a module of theirs.

  It is the only place that knows all clusters alike to
  `jax.distributed.initialize`, which tells nobody what it found.
  """
  with _changed('Detection of clusters is hidden'):
    from jax._src import clusters as module

    _ = module.ClusterEnv.auto_detect_unset_distributed_params
    return module


def detect_cluster(
  address: str | None, timeout: int
) -> tuple[str | None, int | None, int | None, Sequence[int] | None]:
  """Asks the cluster for this process's place in it.

  Args:
    address: HOST:PORT of process 0, if that is known.
    timeout: seconds to wait until the name of process 0's host exists.

  Returns:
    HOST:PORT of process 0, number of processes, which one this is, its local
    devices; None each if the cluster, or the lack of one, does not tell.

  Raises:
    ChangedError: JAX hides how it does this.
    Exception: whatever JAX's code for that cluster raises.
  """
  detect = clusters().ClusterEnv.auto_detect_unset_distributed_params
  return detect(address, None, None, None, None, timeout)


def tpu_hosts() -> Sequence[str]:
  """The addresses of the hosts of a Cloud TPU slice; empty if it is none."""
  cluster = clusters().cloud_tpu_cluster.GceTpuCluster
  if not cluster.is_env_present():
    return ()
  return cluster._get_worker_list_in_slice()


# ---- Checkpoints -------------------------------------------------------------


def orbax_tensorstore() -> types.ModuleType | None:
  """Orbax's module that calls TensorStore, by the name `ts`; None if hidden."""
  try:
    from orbax.checkpoint._src.serialization import tensorstore_utils as module

    _ = module.ts.KvStore.Spec
  except (ImportError, AttributeError):
    return None
  return module


def set_orbax_limit(seconds: int) -> None:
  """Sets how long the parts of a save wait for each other, in this process.

  Orbax has no option for this. Without it, a save fails if creating its folder
  takes 300 s, whatever `timeout_secs` says. A release of Orbax that hides the
  limit keeps those 300 s.
  """
  with contextlib.suppress(ImportError, AttributeError):
    from orbax.checkpoint._src.multihost import multihost

    multihost.coordination_timeout()
    multihost.coordination_timeout = lambda: seconds


@contextlib.contextmanager
def _changed(what: str) -> Iterator[None]:
  try:
    yield
  except (ImportError, AttributeError, KeyError, TypeError) as error:
    raise ChangedError(what) from error
