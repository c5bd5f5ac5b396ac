"""Maps the names of a trace's equations to parts of the model."""

import re
from collections.abc import Mapping

import jax

# Names the work of an attention module that is in none of its submodules.
PRODUCTS = 'attention products'

# Modules that a model repeats, and the common name of the repetitions. Blocks
# that a scan stacks have no number.
_REPEATED = re.compile(r'(encoderblock)(?:_\d+)?|(unit)\d+')
_STACKED = 'encoderblock'
_TOGETHER = {'encoderblock': 'encoderblock_*', 'unit': 'unit*'}

# The halves of an axial block do not count as a level.
_HALVES = ('row', 'column')


class PartTree:
  """Names the parts of a model, after the tree of its parameters.

  Attributes:
    params: number of parameters by part.
  """

  def __init__(self, params: Mapping, *, root: str, levels: int | None):
    """Finds the parts of a tree of parameters.

    Args:
      params: the model's parameters, arrays or their shapes.
      root: name of the part for parameters and equations in no module.
      levels: most levels in a part's name, see `accounts.account`.
    """
    self._tree = params
    self._root = root
    self._levels = levels
    self._names: dict[str, str] = {}
    self._copies: dict[str, dict[tuple[str, ...], int]] = {}
    self.params: dict[str, int] = {}
    self._add(params, ())

  def name(self, stack: str) -> str:
    """Returns the part that an equation belongs to.

    Args:
      stack: the equation's name stack, such as
        `jvp(ViT)/Transformer/encoderblock_0/LayerNorm_0`. It mixes the names of
        modules, transformations, functions and einsums; this method uses only
        names that lead further down the tree of parameters.
    """
    if stack not in self._names:
      path, tree = (), self._tree
      for word in re.split('[/()]', stack):
        if isinstance(tree.get(word), Mapping):
          path, tree = (*path, word), tree[word]
      if path and 'attention' in path[-1].lower():
        path = (*path[:-1], PRODUCTS)
      self._names[stack] = self._part(path)
    return self._names[stack]

  def repeats(self, name: str) -> int:
    """Returns how many repetitions the part `name` stands for."""
    return sum(self._copies[name].values())

  def _add(self, tree: Mapping, path: tuple[str, ...]) -> None:
    for word, below in tree.items():
      if isinstance(below, Mapping):
        self._add(below, (*path, word))
      else:
        name = self._part(path)
        self.params[name] = self.params.get(name, 0) + below.size

  def _part(self, path: tuple[str, ...]) -> str:
    """Names the part at a path of modules and records this repetition."""
    levels = self._levels
    if levels is None:
      levels = 3 if path[:1] == ('Transformer',) else 2
    path = path[: levels + sum(word in _HALVES for word in path[:levels])]
    words, copy = [], ()
    for end, word in enumerate(path, start=1):
      if found := _REPEATED.fullmatch(word):
        word, copy = _TOGETHER[found[1] or found[2]], path[:end]
      words.append(word)
    name = '/'.join(words) or self._root
    copies = self._copies.setdefault(name, {})
    if copy not in copies:
      copies[copy] = self._stacked(copy)
    return name

  def _stacked(self, path: tuple[str, ...]) -> int:
    """Returns how many blocks are stacked in the module at `path`."""
    if path[-1:] != (_STACKED,):
      return 1
    tree = self._tree
    for word in path:
      tree = tree[word]
    return jax.tree.leaves(tree)[0].shape[0]
