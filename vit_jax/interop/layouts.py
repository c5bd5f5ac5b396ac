"""What a layout of weights is: rules for names and shapes, in both directions.

`families` has the layouts that are known. Our names are flat here:
`Transformer/encoder_norm/scale`. Arrays may be anything with NumPy's interface;
none is changed in place.
"""

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

Arrays = Mapping[str, np.ndarray]

_TRANSFORMER = r'((?:decoder/)?Transformer/encoderblock)'


# ---- Rules -------------------------------------------------------------------


class Rule(NamedTuple):
  """One array in a file, and what it is here.

  Attributes:
    theirs: the name in the file. `{i}` and `{j}` stand for numbers, and other
      words in braces for any text; they have the same values in `ours`.
    ours: our name.
    operation: what changes the array, a name in `OPERATIONS`.
  """

  theirs: str
  ours: str
  operation: str = 'same'


# Name -> from the file's array and the number H of heads to ours, and back. An
# operation on a kernel leaves a bias of the same module, with one axis less,
# as it is, unless the bias is per head, too.
OPERATIONS = {
  'same': (lambda x, heads: x, lambda x: x),
  # [out, in] <-> [in, out]
  'dense': (lambda x, heads: x.T, lambda x: x.T),
  # [D, C, P, P] <-> [P, P, C, D]
  'conv': (
    lambda x, heads: x.transpose(2, 3, 1, 0) if x.ndim == 4 else x,
    lambda x: x.transpose(3, 2, 0, 1) if x.ndim == 4 else x,
  ),
  # [H * K, D] <-> [D, H, K]; a bias [H * K] <-> [H, K]
  'to_heads': (
    lambda x, heads: x.T.reshape(*x.T.shape[:-1], heads, -1),
    lambda x: x.reshape(*x.shape[:-2], -1).T,
  ),
  # [D, H * K] <-> [H, K, D]
  'from_heads': (
    lambda x, heads: x.T.reshape(heads, -1, len(x)) if x.ndim == 2 else x,
    lambda x: x.reshape(-1, x.shape[-1]).T if x.ndim == 3 else x,
  ),
  # A convolution of 1x1 pixels, [1, 1, in, out] <-> [in, out]
  'one_pixel': (
    lambda x, heads: x[0, 0] if x.shape[:-2] == (1, 1) else x,
    lambda x: x[None, None],
  ),
  # [1, 1, 1, C], in some files, -> [C]
  'vector': (
    lambda x, heads: x[0, 0, 0] if x.shape[:-1] == (1, 1, 1) else x,
    lambda x: x,
  ),
}


# The operation on each of our modules, as PyTorch has them; norms have none.
_OPERATION_OF = {
  'embedding': 'conv',
  **dict.fromkeys(
    ('pre_logits', 'head', 'head_dist', 'Dense_0', 'Dense_1', 'gate'), 'dense'
  ),
  **dict.fromkeys(('query', 'key', 'value'), 'to_heads'),
  'out': 'from_heads',
}


def of_pytorch(modules: Mapping[str, str]) -> Iterator[Rule]:
  """Yields the rules of modules with a `weight` and a `bias`.

  Args:
    modules: PyTorch's name -> ours.
  """
  for theirs, ours in modules.items():
    operation = _OPERATION_OF.get(ours.rpartition('/')[2], 'same')
    kernel = 'scale' if operation == 'same' else 'kernel'
    for leaf, our_leaf in (('weight', kernel), ('bias', 'bias')):
      yield Rule(f'{theirs}.{leaf}', f'{ours}/{our_leaf}', operation)


class Key(NamedTuple):
  """A key of `config.json`, and the attribute of the model that it sets.

  Attributes:
    theirs: the key.
    ours: the attribute.
    default: what a file means that leaves the key out.
    values: their value -> ours, if they differ.
  """

  theirs: str
  ours: str
  default: Any
  values: Mapping[Any, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Family:
  """Models whose weights others keep in one layout.

  Attributes:
    rules: the names; the first that fits a name counts.
    aliases: (pattern, replacement) of names that some files have instead;
      applied in this order before the rules.
    unused: names of arrays, without aliases, that change no output.
    unused_with_head: the same for files that have a head.
    keys: how `config.json` maps to the options of `models.build`.
    fixed: attribute -> the only value that the family's models have.
    config: further entries of a `config.json` that is written.
    processor: the image processor of these models, if a folder names none: a
      key of `processors.PROCESSORS`.
  """

  rules: tuple[Rule, ...]
  aliases: tuple[tuple[str, str], ...] = ()
  unused: tuple[str, ...] = ()
  unused_with_head: tuple[str, ...] = ()
  keys: tuple[Key, ...] = ()
  fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  processor: str = ''

  def knows(self, names: Iterable[str]) -> bool:
    """Returns whether a rule fits one of the names in a file."""
    return any(self._rule(self.plain(name), 'theirs')[0] for name in names)

  def plain(self, name: str) -> str:
    """Returns a name of a file without aliases."""
    for pattern, replacement in self.aliases:
      name = re.sub(pattern, replacement, name)
    return name

  def read(self, arrays: Arrays, heads: int = 1) -> dict[str, np.ndarray]:
    """Renames and changes a file's arrays to ours.

    Args:
      arrays: name in the file -> array.
      heads: the number of attention heads, which PyTorch's arrays do not show.

    Returns:
      Our name -> array. Unknown names stay, and arrays of an unexpected shape
      keep it, for `fitting` to list.

    Raises:
      ValueError: two names of the file mean the same array.
    """
    params, origin = {}, {}
    for name, array in arrays.items():
      rule, found = self._rule(self.plain(name), 'theirs')
      new = _filled(rule.ours, found) if rule else name
      if new in params:
        raise ValueError(
          f'{origin[new]} and {name} are both {new}: the file mixes two'
          ' naming schemes.'
        )
      if rule:
        change, _ = OPERATIONS[rule.operation]
        with contextlib.suppress(ValueError):  # Of an unexpected shape.
          array = change(array, heads)
      params[new], origin[new] = array, name
    return params

  def write(self, params: Arrays) -> dict[str, np.ndarray]:
    """Inverts `read`; names that no rule has stay."""
    arrays = {}
    for name, array in params.items():
      rule, found = self._rule(name, 'ours')
      if rule:
        _, change = OPERATIONS[rule.operation]
        name, array = _filled(rule.theirs, found), change(array)
      arrays[name] = array
    return arrays

  def options(self, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of `models.build` that a `config.json` sets."""
    found = {}
    for key in self.keys:
      value = config.get(key.theirs, key.default)
      if key.values and value not in key.values:
        raise ValueError(
          f'{key.theirs}={value!r} is unknown; known are'
          f' {", ".join(key.values)}.'
        )
      found[key.ours] = key.values[value] if key.values else value
    return found

  def configured(self, model: nn.Module) -> dict[str, Any]:
    """Inverts `options`: returns the `config.json` of a model."""
    found = dict(self.config)
    for key in self.keys:
      value = getattr(model, key.ours)
      back = {ours: theirs for theirs, ours in (key.values or {}).items()}
      found[key.theirs] = side(back.get(value, value))
    return found

  def unlike(self, model: nn.Module) -> list[str]:
    """Returns the attributes of a model that no model of the family has."""
    return [
      f'{key}={getattr(model, key, None)!r}'
      for key, value in self.fixed.items()
      if getattr(model, key, None) != value
    ]

  def _rule(self, name, side):
    for rule in self.rules:
      if found := _pattern(getattr(rule, side)).fullmatch(name):
        return rule, found
    return None, None


def side(size: Any) -> Any:
  """Returns a side for a pair of equal sides, as configs have them."""
  if not isinstance(size, tuple):
    return size
  return size[0] if size[0] == size[1] else list(size)


@functools.cache
def _pattern(template: str) -> re.Pattern:
  """Returns what matches the names of a template, with a group per brace."""
  parts = re.split(r'\{(\w+)[^}]*\}', template)  # Text, word, text, ...
  text, words = map(re.escape, parts[::2]), parts[1::2]
  groups = [
    rf'(?P<{word}>\d{{1,4}})' if word in 'ij' else f'(?P<{word}>.*)'
    for word in words
  ]
  return re.compile(
    ''.join(a + b for a, b in itertools.zip_longest(text, groups, fillvalue=''))
  )


def _filled(template: str, found: re.Match) -> str:
  return template.format(
    **{k: int(v) if k in 'ij' else v for k, v in found.groupdict().items()}
  )


# ---- Stacked blocks ----------------------------------------------------------


def unstack(arrays: Arrays) -> dict[str, np.ndarray]:
  """Splits `Transformer/encoderblock/...` [depth, ...] into blocks."""
  result = {}
  for name, array in arrays.items():
    match = re.fullmatch(rf'{_TRANSFORMER}/(.*)', name)
    if match and array.ndim:
      for i, block in enumerate(array):
        result[f'{match[1]}_{i}/{match[2]}'] = block
    else:
      result[name] = array
  return result


def stack(arrays: Arrays) -> dict[str, np.ndarray]:
  """Inverts `unstack`: the parameters of a model with `scan=True`."""
  result, blocks = {}, {}
  for name, array in arrays.items():
    if match := re.fullmatch(rf'{_TRANSFORMER}_(\d+)/(.*)', name):
      stacked = f'{match[1]}/{match[3]}'
      blocks.setdefault(stacked, {})[int(match[2])] = array
    else:
      result[name] = array
  for stacked, array in blocks.items():
    result[stacked] = np.stack([array[i] for i in sorted(array)])
  return result
