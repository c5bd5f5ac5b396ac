"""The items: the paper's tables, figures and results, then what goes beyond."""

from collections.abc import Sequence

from vit_jax.paper.items import (
  curve_items,
  figure_items,
  inspection_items,
  masked_patch_item,
  memory_item,
  near_duplicates_item,
  norm_position_item,
  objectnet_item,
  regularization_item,
  scaling_item,
  settings_items,
  speed_items,
  table_items,
  translation_item,
  vtab_items,
)
from vit_jax.paper.items.item import Item

ITEMS = {
  item.name: item
  for item in (
    settings_items.table1(),
    table_items.table2(),
    settings_items.table3(),
    settings_items.table4(),
    table_items.table5(),
    table_items.table6(),
    table_items.table7(),
    table_items.table8(),
    vtab_items.table9(),
    vtab_items.figure2(),
    figure_items.figure3(),
    curve_items.figure4(),
    figure_items.figure5(),
    inspection_items.figure6(),
    inspection_items.figure7(),
    scaling_item.figure8(),
    curve_items.figure9(),
    inspection_items.figure10(),
    inspection_items.figure11(),
    speed_items.figure12(),
    curve_items.figure13(),
    inspection_items.figure14(),
    masked_patch_item.masked_patch(),
    regularization_item.regularization(),
    objectnet_item.objectnet(),
    norm_position_item.norm_position(),
    translation_item.translation(),
    memory_item.training_memory(),
    near_duplicates_item.near_duplicates(),
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
