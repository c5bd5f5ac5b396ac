"""The items: the paper's tables, figures and results, then what goes beyond.

A new item is a file with `ITEM` in one of the folders, and a line here.
"""

from collections.abc import Sequence

from vit_jax.paper.item import Item
from vit_jax.paper.items.beyond import (
  equivariance,
  near_duplicates,
  norm_position,
  training_memory,
  translation,
)
from vit_jax.paper.items.figures import (
  figure2,
  figure3,
  figure4,
  figure5,
  figure6,
  figure7,
  figure8,
  figure9,
  figure10,
  figure11,
  figure12,
  figure13,
  figure14,
)
from vit_jax.paper.items.tables import (
  table1,
  table2,
  table3,
  table4,
  table5,
  table6,
  table7,
  table8,
  table9,
)
from vit_jax.paper.items.text import (
  extremes,
  head,
  masked_patch,
  objectnet,
  overfitting,
  pixels,
  receptive_field,
  regularization,
  resolution,
  sinusoids,
  sizes,
  tuned_regularization,
  weight_decay,
)

ITEMS: dict[str, Item] = {
  module.ITEM.name: module.ITEM
  for module in (
    *(table1, table2, table3, table4, table5, table6, table7, table8, table9),
    *(figure2, figure3, figure4, figure5, figure6, figure7, figure8, figure9),
    *(figure10, figure11, figure12, figure13, figure14),
    *(masked_patch, regularization, objectnet, resolution, head, weight_decay),
    *(extremes, overfitting, tuned_regularization, pixels, sizes, sinusoids),
    *(receptive_field, norm_position, translation, equivariance),
    *(training_memory, near_duplicates),
  )
}


def find(words: Sequence[str]) -> list[Item]:
  """Returns the items with the given names; `all` means all of the paper's.

  Raises:
    ValueError: one is unknown; lists the choices.
  """
  unknown = sorted({*words} - {*ITEMS, 'all'})
  if unknown:
    raise ValueError(
      f'{", ".join(unknown)}: no such item; choose from {", ".join(ITEMS)}, or'
      ' all.'
    )
  return [
    item
    for name, item in ITEMS.items()
    if name in words or ('all' in words and not item.beyond)
  ]
