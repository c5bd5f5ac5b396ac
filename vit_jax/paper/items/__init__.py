"""The items: the paper's tables, figures and results, then what goes beyond.

A new item is an `Item` in a file of one of the folders, and a word here.
"""

import importlib
import pkgutil
from collections.abc import Sequence

from vit_jax.paper.item import Item

# In the order of the page.
_ORDER = (
  *(f'table{number}' for number in range(1, 10)),
  *(f'figure{number}' for number in range(2, 15)),
  *('masked_patch', 'regularization', 'objectnet', 'resolution', 'head'),
  *('weight_decay', 'extremes', 'overfitting', 'tuned_regularization'),
  *('pixels', 'sizes', 'sinusoids', 'receptive_field'),
  *('norm_position', 'translation', 'equivariance'),
)
_FOUND = {
  item.name: item
  for module in pkgutil.walk_packages(__path__, f'{__name__}.')
  for item in vars(importlib.import_module(module.name)).values()
  if isinstance(item, Item)
}
ITEMS: dict[str, Item] = {name: _FOUND[name] for name in _ORDER}


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
