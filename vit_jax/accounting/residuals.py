"""Finds the arrays that a traced function returns, and where they come from."""

from collections.abc import Iterator

from jax.extend import core

from vit_jax.runtime import jax_internals

# Operations that return the same numbers in another shape. A broadcast counts
# as the smaller array, since repeating it again is as cheap as keeping it.
_VIEWS = ('reshape', 'squeeze', 'expand_dims', 'broadcast_in_dim')

# Variable -> the equation that computes it, and its index among the results.
_Computed = dict[core.Var, tuple[core.JaxprEqn, int]]


def count(jaxpr: core.Jaxpr) -> Iterator[tuple[str, int]]:
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
    stack = jax_internals.name_stack(eqn)
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
      constants, carry = jax_internals.carried(eqn, called)
      if i >= carry:
        size *= jax_internals.trips(eqn)
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
  for called in jax_internals.called(eqn):
    if len(called.invars) == len(eqn.invars) and (
      len(called.outvars) == len(eqn.outvars)
    ):
      return called
  return None
