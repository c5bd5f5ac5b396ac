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


def residuals(jaxpr: core.Jaxpr) -> Iterator[int]:
  """Yields the bytes of a function's results, each array once.

  Arguments that the function returns do not count. A reshaped or broadcast
  array counts as the original array. The results of a loop are its stacked
  arrays.
  """
  seen = set()
  for result in jaxpr.outvars:
    key, var = _origin(jaxpr, result)
    if key and key not in seen:
      seen.add(key)
      yield var.aval.size * var.aval.dtype.itemsize


def _origin(
  jaxpr: core.Jaxpr, var: core.Var | core.Literal
) -> tuple[tuple[int, ...], core.Var | core.Literal]:
  """Finds where a variable of a function comes from.

  Returns:
    A unique key of the array that it is, () for an argument or a constant; and
    the variable of the array.
  """
  computed = {
    out: (eqn, i) for eqn in jaxpr.eqns for i, out in enumerate(eqn.outvars)
  }
  while not isinstance(var, core.Literal) and var in computed:
    eqn, i = computed[var]
    if eqn.primitive.name in _VIEWS:
      var = eqn.invars[0]
      continue
    called = _called(eqn)
    if called is None:
      return (id(var),), var
    key, inner = _origin(called, called.outvars[i])
    if key:
      # Calls of one function share its trace, but each has its own equation.
      return (id(eqn), *key), inner
    if isinstance(inner, core.Literal):
      return (), inner
    var = eqn.invars[called.invars.index(inner)]
  return (), var


def _called(eqn: core.JaxprEqn) -> core.Jaxpr | None:
  """Returns the called function with the equation's arguments and results.

  None if there is no such function, and for loops, which change shapes.
  """
  if eqn.primitive.name in ('while', 'scan'):
    return None
  for called in functions(eqn):
    if len(called.invars) == len(eqn.invars) and (
      len(called.outvars) == len(eqn.outvars)
    ):
      return called
  return None
