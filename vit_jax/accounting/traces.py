"""Counts products, and the arrays that are kept, in a traced function."""

import math
from collections.abc import Iterator

import numpy as np
from jax.extend import core

# The trace does not tell how often these run their body, or the body sees
# only a part of the data.
_UNKNOWN = ('while', 'pallas_call', 'shard_map')

# Operations that return the same numbers in another shape. A broadcast counts
# as the smaller array, since repeating it again is as cheap as keeping it.
_VIEWS = ('reshape', 'squeeze', 'expand_dims', 'broadcast_in_dim')

# Variable -> the equation that computes it, and its index among the results.
_Computed = dict[core.Var, tuple[core.JaxprEqn, int]]


def products(jaxpr: core.Jaxpr) -> Iterator[tuple[str, int]]:
  """Counts multiply-accumulates of matrix products and convolutions.

  The count includes functions that are called, recomputed or have their own
  gradient. The body of a loop of known length counts once for each iteration
  (XLA's cost analysis counts it once in all). A conditional counts as its
  branch with the most multiply-accumulates.

  Args:
    jaxpr: the function.

  Yields:
    The name stack of each equation, in order, and its count, mostly 0.

  Raises:
    ValueError: there are products in a while loop, or in another construct
      that hides their number.
  """
  for eqn in jaxpr.eqns:
    stack = _stack(eqn)
    kind = eqn.primitive.name
    if kind == 'dot_general':
      yield stack, _matrix_product(eqn)
    elif kind == 'conv_general_dilated':
      yield stack, _convolution(eqn)
    elif inner := [list(products(sub)) for sub in functions(eqn)]:
      # Only a conditional has several branches that can hold products.
      branch = max(inner, key=lambda found: sum(macs for _, macs in found))
      if kind in _UNKNOWN and any(macs for _, macs in branch):
        raise ValueError(
          f'there are matrix products in a {kind} at {stack!r}: their number '
          'cannot be read off the trace. Use a loop of known length '
          '(jax.lax.scan), or account for the model without it.'
        )
      times = eqn.params['length'] if kind == 'scan' else 1
      for below, macs in branch:
        yield f'{stack}/{below}', times * macs
    else:
      yield stack, 0


def _stack(eqn: core.JaxprEqn) -> str:
  """Returns an equation's modules and scopes, joined by `/`."""
  return str(eqn.source_info.name_stack)


def functions(eqn: core.JaxprEqn) -> Iterator[core.Jaxpr]:
  """Yields the functions that an equation calls, without their constants."""
  for value in eqn.params.values():
    for item in value if isinstance(value, tuple | list) else (value,):
      # Up to JAX 0.10, a jaxpr with constants has its own class, ClosedJaxpr.
      if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
        yield getattr(item, 'jaxpr', item)


def _matrix_product(eqn: core.JaxprEqn) -> int:
  left = eqn.invars[0].aval.shape
  (contracted, _), _ = eqn.params['dimension_numbers']
  summed = math.prod(left[i] for i in contracted)
  return eqn.outvars[0].aval.size * summed


def _convolution(eqn: core.JaxprEqn) -> int:
  # The axes of the batch, the features and the spatial dimensions.
  source_axes, kernel_axes, target_axes = eqn.params['dimension_numbers']
  source, kernel = (var.aval.shape for var in eqn.invars)
  target = eqn.outvars[0].aval.shape
  # A tap is a pair of an output position and an offset into the kernel. It is
  # inside if it is inside along each dimension, so the counts multiply.
  taps = 1
  for i, (pads, stride, source_step, kernel_step) in enumerate(
    zip(
      eqn.params['padding'],
      eqn.params['window_strides'],
      eqn.params['lhs_dilation'],
      eqn.params['rhs_dilation'],
      strict=True,
    ),
    start=2,
  ):
    starts = np.arange(target[target_axes[i]]) * stride - pads[0]
    offsets = np.arange(kernel[kernel_axes[i]]) * kernel_step
    position = starts[:, None] + offsets
    end = (source[source_axes[i]] - 1) * source_step
    inside = (position >= 0) & (position <= end)
    taps *= int(np.sum(inside & (position % source_step == 0)))
  batch, features = (target[axis] for axis in target_axes[:2])
  # The kernel's input features are those of one group.
  return batch * features * kernel[kernel_axes[1]] * taps


def residuals(jaxpr: core.Jaxpr) -> Iterator[tuple[str, int]]:
  """Yields the sizes of a function's results, each array once.

  Arguments that the function returns do not count. A reshaped or broadcast
  array counts as the original array.

  Args:
    jaxpr: the function.

  Yields:
    The name stack of the equation that computed a result, and its bytes.
  """
  seen = set()
  computed = _computed(jaxpr)
  for var in jaxpr.outvars:
    if isinstance(var, core.Literal):
      continue
    array, stack, size = _origin(computed, var)
    if stack is not None and array not in seen:
      seen.add(array)
      yield stack, size


def _computed(jaxpr: core.Jaxpr) -> _Computed:
  return {
    var: (eqn, i) for eqn in jaxpr.eqns for i, var in enumerate(eqn.outvars)
  }


def _bytes(var: core.Var) -> int:
  return var.aval.size * var.aval.dtype.itemsize


def _origin(
  computed: _Computed, var: core.Var | core.Literal
) -> tuple[tuple[int, ...] | core.Var | core.Literal, str | None, int]:
  """Finds where a variable of a function comes from.

  Args:
    computed: the function's equations, by their results.
    var: the variable.

  Returns:
    A unique key of the array, the name stack of the equation that computed it,
    and its bytes. For a function's argument or a constant: the variable, None
    and its bytes.
  """
  while not isinstance(var, core.Literal) and var in computed:
    eqn, i = computed[var]
    stack = _stack(eqn)
    if eqn.primitive.name in _VIEWS:
      var = eqn.invars[0]
      continue
    called = _called(eqn)
    if called is None:
      return (id(var),), stack, _bytes(var)
    inner = _computed(called)
    array, below, size = _origin(inner, called.outvars[i])
    looped = eqn.primitive.name == 'scan'
    if looped:
      constants, carry = _carried(eqn, called)
      if i >= carry:
        size *= eqn.params['length']
    if below is not None:
      # Calls of one function share its trace, but each has its own equation.
      return (id(eqn), *array), f'{stack}/{below}', size
    if isinstance(array, core.Literal):
      return array, None, size
    place = called.invars.index(array)
    if looped:
      # A value that the loop carries, kept from every iteration.
      carried = place - constants
      if 0 <= carried < carry:
        below = _origin(inner, called.outvars[carried])[1]
      return (id(var),), f'{stack}/{below or ""}', size
    var = eqn.invars[place]
  return var, None, _bytes(var)


def _called(eqn: core.JaxprEqn) -> core.Jaxpr | None:
  """Returns the called function with the equation's arguments and results.

  None if there is no such function.
  """
  if eqn.primitive.name == 'while':
    return None
  for called in functions(eqn):
    if len(called.invars) == len(eqn.invars) and (
      len(called.outvars) == len(eqn.outvars)
    ):
      return called
  return None


def _carried(scan: core.JaxprEqn, body: core.Jaxpr) -> tuple[int, int]:
  """Returns how many constants and how many carried values a `scan` has.

  The arguments of a scan are constants, carried values and sliced arrays; its
  results are carried values and stacked arrays. In the body, the sliced and
  stacked arrays have one dimension less, which identifies them. JAX's own
  numbers of them are not the same in all releases.
  """

  def whole(outer, inner):
    return sum(
      out.aval.ndim == within.aval.ndim
      for out, within in zip(outer, inner, strict=True)
    )

  carry = whole(scan.outvars, body.outvars)
  return whole(scan.invars, body.invars) - carry, carry
