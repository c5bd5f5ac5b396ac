"""The order of an array's numbers in memory, where the compiler chooses badly.

A compiler chooses the order of each array by local rules. A choice that suits
one operation costs a copy of the whole array before the next.
"""

import jax
from jax.experimental import layout

from vit_jax import sharding


@jax.custom_vjp
def row_major(x: jax.Array) -> jax.Array:
  """Makes the compiler keep an array, and its gradient, in row-major layout.

  The last dimension is then along the lanes. Otherwise the compiler chooses
  layouts by local rules, and copies between them.
  """
  return layout.with_layout_constraint(
    x, layout.Layout(major_to_minor=tuple(range(x.ndim)))
  )


row_major.defvjp(
  lambda x: (row_major(x), None), lambda _, grad: (row_major(grad),)
)


def keep_row_major(
  x: jax.Array, *spec: str | tuple[str, ...] | None, on: bool = True
) -> jax.Array:
  """Applies `row_major` on every device to its own part of an array.

  Args:
    x: any array.
    *spec: how it is split, see `sharding.constrain`.
    on: False leaves the order to the compiler.
  """
  return sharding.per_shard(row_major, *spec)(x) if on else x
