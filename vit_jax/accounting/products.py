"""Counts multiply-accumulates in a traced function."""

import math
from collections.abc import Iterator

import numpy as np
from jax.extend import core

from vit_jax.runtime import jax_internals

PADDINGS = ('inside', 'all')

# The trace does not tell how often these run their body, or the body sees
# only a part of the data.
_UNKNOWN = ('while', 'pallas_call', 'shard_map')


def count(jaxpr: core.Jaxpr, padding: str) -> Iterator[tuple[str, int]]:
  """Counts multiply-accumulates of matrix products and convolutions.

  The count includes functions that are called, recomputed or have their own
  gradient. The body of a loop of known length counts once for each iteration
  (XLA's cost analysis counts it once in all). A conditional counts as its
  branch with the most multiply-accumulates.

  Args:
    jaxpr: the function.
    padding: which taps of a convolution count, see `accounts.account`.

  Yields:
    The name stack of each equation, in order, and its count, mostly 0.

  Raises:
    ValueError: there are products in a while loop, or in another construct
      that hides their number.
  """
  for eqn in jaxpr.eqns:
    stack = jax_internals.name_stack(eqn)
    kind = eqn.primitive.name
    if kind == 'dot_general':
      yield stack, _matrix_product(eqn)
    elif kind == 'conv_general_dilated':
      yield stack, _convolution(eqn, padding)
    elif inner := [
      list(count(sub, padding)) for sub in jax_internals.called(eqn)
    ]:
      # Only a conditional has several branches that can hold products.
      branch = max(inner, key=lambda found: sum(macs for _, macs in found))
      if kind in _UNKNOWN and any(macs for _, macs in branch):
        raise ValueError(
          f'there are matrix products in a {kind} at {stack!r}: their number '
          'cannot be read off the trace. Use a loop of known length '
          '(jax.lax.scan), or account for the model without it.'
        )
      times = jax_internals.trips(eqn) if kind == 'scan' else 1
      for below, macs in branch:
        yield f'{stack}/{below}', times * macs
    else:
      yield stack, 0


def _matrix_product(eqn: core.JaxprEqn) -> int:
  left = eqn.invars[0].aval.shape
  summed = math.prod(left[i] for i in jax_internals.contracted(eqn))
  return eqn.outvars[0].aval.size * summed


def _convolution(eqn: core.JaxprEqn, padding: str) -> int:
  params = jax_internals.convolution(eqn)
  source, kernel = (var.aval.shape for var in eqn.invars)
  target = eqn.outvars[0].aval.shape
  # A tap is a pair of an output position and an offset into the kernel. It is
  # inside if it is inside along each dimension, so the counts multiply.
  taps = 1
  for i, (pads, stride, source_step, kernel_step) in enumerate(
    zip(
      params.padding,
      params.strides,
      params.input_steps,
      params.kernel_steps,
      strict=True,
    ),
    start=2,
  ):
    starts = np.arange(target[params.output_dimensions[i]]) * stride - pads[0]
    offsets = np.arange(kernel[params.kernel_dimensions[i]]) * kernel_step
    position = starts[:, None] + offsets
    if padding == 'inside':
      end = (source[params.input_dimensions[i]] - 1) * source_step
      inside = (position >= 0) & (position <= end)
      taps *= int(np.sum(inside & (position % source_step == 0)))
    else:
      taps *= position.size
  batch, features = (target[axis] for axis in params.output_dimensions[:2])
  # The kernel's input features are those of one group.
  return batch * features * kernel[params.kernel_dimensions[1]] * taps
