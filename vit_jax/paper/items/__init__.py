"""The items: the paper's tables, figures and results, then what goes beyond.

A new item is a file with `ITEM` in one of the folders, and a word here.
"""

import importlib
from collections.abc import Sequence

from vit_jax.paper.item import Item

# Folder -> its items, in the order of the page.
_FILES = {
  'tables': tuple(f'table{number}' for number in range(1, 10)),
  'figures': tuple(f'figure{number}' for number in range(2, 15)),
  'text': (
    *('masked_patch', 'regularization', 'objectnet', 'resolution', 'head'),
    *('weight_decay', 'extremes', 'overfitting', 'tuned_regularization'),
    *('pixels', 'sizes', 'sinusoids', 'receptive_field'),
  ),
  'beyond': (
    *('norm_position', 'translation', 'equivariance', 'training_memory'),
    'near_duplicates',
  ),
}
ITEMS: dict[str, Item] = {
  name: importlib.import_module(f'{__name__}.{folder}.{name}').ITEM
  for folder, names in _FILES.items()
  for name in names
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
