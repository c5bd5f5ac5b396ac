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
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

from vit_jax.models import vit

Arrays = Mapping[str, np.ndarray]

# Attributes that change how a model is trained or computed, not its function.
NOT_DESCRIBED = (
  *('num_classes', 'dropout_rate', 'stochastic_depth', 'stochastic_depth_rule'),
  *('head_bias', 'head_stddev', 'dtype', 'remat', 'scan', 'patch_outputs'),
  *('decoder', 'parent', 'name'),
)
# Those, and others that every layout of a ViT can express or does not need.
_FREE = (
  *NOT_DESCRIBED,
  *('attention_implementation', 'position_stddev', 'resnet_width'),
  *('image_mean', 'image_std'),
)
_HEADS = 'head/kernel', 'head_dist/kernel'
_TRANSFORMER = r'((?:decoder/)?Transformer/encoderblock)'


# ---- Rules -------------------------------------------------------------------


class Rule(NamedTuple):
  """One array in a file, and what it is here.

  Attributes:
    theirs: the name in the file. `{i}` and `{j}` stand for numbers, and other
      words in braces for any text; they have the same values in `ours`.
    ours: our name.
    operation: what changes the array, a name in `OPERATIONS`.
    needs: writing uses the rule only if one of our names contains this text.
  """

  theirs: str
  ours: str
  operation: str = 'same'
  needs: str = ''


class Fused(NamedTuple):
  """Arrays of the same shape that a file keeps as one, along its first axis.

  Attributes:
    theirs: the name in the file, with words in braces as in `Rule`.
    parts: names for the parts, which rules have as `theirs`.
    reader: name of the array that multiplies one of the parts' outputs. The
      parts are fused if it has as many columns as one of them has rows. '' if
      they always are.
  """

  theirs: str
  parts: tuple[str, ...]
  reader: str = ''

  def split(self, arrays: dict[str, np.ndarray]) -> None:
    """Replaces fused arrays by their parts; others keep an unknown name."""
    for name, array in list(arrays.items()):
      found = _pattern(self.theirs).fullmatch(name)
      count = len(self.parts)
      if not found or not array.ndim or len(array) % count:
        continue
      if self.reader:
        reader = arrays.get(_filled(self.reader, found))
        if reader is None or count * reader.shape[-1] != len(array):
          continue
      parts = np.split(array, count)
      names = (_filled(part, found) for part in self.parts)
      arrays |= dict(zip(names, parts, strict=True))
      del arrays[name]

  def join(self, arrays: dict[str, np.ndarray]) -> None:
    """Inverts `split`; ValueError if only some of the parts are there."""
    for name, part in itertools.product(list(arrays), self.parts):
      found = _pattern(part).fullmatch(name)
      if not found or name not in arrays:
        continue
      names = [_filled(part, found) for part in self.parts]
      if lacking := {*names} - arrays.keys():
        raise ValueError(
          f'The layout keeps {", ".join(names)} together, but the model has no'
          f' {", ".join(sorted(lacking))}: choose another layout.'
        )
      parts = [arrays.pop(part) for part in names]
      arrays[_filled(self.theirs, found)] = np.concatenate(parts)


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
  # [D] <-> [1, 1, D]
  'token': (lambda x, heads: x[None, None], lambda x: x[0, 0]),
  # [N, D] <-> [1, N, D]
  'table': (lambda x, heads: x[None], lambda x: x[0]),
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


def of_pytorch(
  modules: Mapping[str, str], *, within: str = '', ours: str = '', needs=''
) -> Iterator[Rule]:
  """Yields the rules of modules with a `weight` and a `bias`.

  Args:
    modules: PyTorch's name -> ours.
    within: what PyTorch's names begin with.
    ours: what our names begin with.
    needs: see `Rule`.
  """
  modules = {within + k: ours + v for k, v in modules.items()}
  for theirs, ours in modules.items():
    operation = _OPERATION_OF.get(ours.rpartition('/')[2], 'same')
    kernel = 'scale' if operation == 'same' else 'kernel'
    for leaf, our_leaf in (('weight', kernel), ('bias', 'bias')):
      yield Rule(f'{theirs}.{leaf}', f'{ours}/{our_leaf}', operation, needs)


class Key(NamedTuple):
  """A key of `config.json`, and the attribute of the model that it sets.

  Attributes:
    theirs: the key.
    ours: the attribute.
    default: what a file means that leaves the key out; None for a key that
      only repeats what the arrays show.
    values: their value -> ours, if they differ.
  """

  theirs: str
  ours: str
  default: Any = None
  values: Mapping[Any, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Family:
  """Models whose weights others keep in one layout.

  Attributes:
    rules: the names, without `prefix`; the first that fits a name counts.
    fused: arrays that are several ones here.
    aliases: (pattern, replacement) of names that some files have instead;
      applied in this order before the rules.
    prefix: what names begin with, but for the head's, in a file with a head.
    unused: patterns of names, without aliases, that change no output.
    unused_with_head: the same for files that have a head.
    no_bias: our modules whose bias the layout lacks: it is 0.
    keys: how `config.json` maps to the options of `models.build`.
    check: raises ValueError for a model, as read, that its `config.json`
      describes in another way.
    fixed: attribute -> the only value that the family's models have, or a
      function that tells whether a value is one of theirs. Attributes that are
      neither here nor in `keys` or `free` have their default.
    free: attributes that the arrays show, or that `config` knows.
    clashing: returns the attributes of a `vit.ViT` that do not go together
      here, although other values allow each.
    pooling: what models without and with a head pool, or a function as in
      `fixed`; '' if there are none.
    config: further entries of a `config.json` that is written; a function gets
      the model. `architectures` has the names without and with a head.
    composite: `model_type` of files with a head, if they keep the keys in a
      section `vision_config`.
    processor: the image processor of these models, if a folder names none.
    resize: how their code brings positions to another grid, see
      `position.resize`.
  """

  rules: tuple[Rule, ...]
  fused: tuple[Fused, ...] = ()
  aliases: tuple[tuple[str, str], ...] = ()
  prefix: str = ''
  unused: tuple[str, ...] = ()
  unused_with_head: tuple[str, ...] = ()
  no_bias: tuple[str, ...] = ()
  keys: tuple[Key, ...] = ()
  check: Callable[[nn.Module, Mapping[str, Any]], None] | None = None
  fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  free: tuple[str, ...] = ()
  clashing: Callable[[vit.ViT], tuple[str, ...]] = lambda model: ()
  pooling: tuple[Any, Any] = ('token', 'token')
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  composite: str = ''
  processor: str = ''
  resize: str = 'bilinear'

  def knows(self, names: Iterable[str]) -> bool:
    """Returns whether a rule fits one of the names in a file."""
    return any(self._rule(self.plain(name), 'theirs')[0] for name in names)

  def plain(self, name: str) -> str:
    """Returns a name of a file without aliases and prefix."""
    for pattern, replacement in self.aliases:
      name = re.sub(pattern, replacement, name)
    return name.removeprefix(self.prefix)

  def drops(self, names: Iterable[str], *, has_head: bool) -> set[str]:
    """Returns the names in a file that change no output."""
    unused = self.unused + self.unused_with_head * has_head
    return {
      name
      for name in names
      if any(re.fullmatch(pattern, self.plain(name)) for pattern in unused)
    }

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
    plain, params = {}, {}
    for name, array in arrays.items():
      if self.plain(name) in plain:
        raise ValueError(_twice(name, self.plain(name)))
      plain[self.plain(name)] = array
    for fused in self.fused:
      fused.split(plain)
    for name, array in plain.items():
      rule, found = self._rule(name, 'theirs')
      new = _filled(rule.ours, found) if rule else name
      if new in params:
        raise ValueError(_twice(name, new))
      if rule:
        change, _ = OPERATIONS[rule.operation]
        with contextlib.suppress(ValueError):  # Of an unexpected shape.
          array = change(array, heads)
      params[new] = array
    for module in self.no_bias:
      if f'{module}/kernel' in params:
        zeros = np.zeros(params[f'{module}/kernel'].shape[-1], np.float32)
        params.setdefault(f'{module}/bias', zeros)
    return params

  def write(self, params: Arrays) -> dict[str, np.ndarray]:
    """Inverts `read`; names that no rule has stay.

    Raises:
      ValueError: a bias that the layout lacks is not 0.
    """
    arrays, prefix = {}, self.prefix * ('head/kernel' in params)
    for name, array in params.items():
      module = name.rpartition('/')[0]
      if name.endswith('/bias') and module in self.no_bias:
        if np.any(array):
          raise ValueError(
            f'{name} is not 0, but this layout has no such array: choose'
            ' another --layout.'
          )
        continue
      rule, found = self._rule(name, 'ours', params)
      if rule:
        _, change = OPERATIONS[rule.operation]
        name, array = _filled(rule.theirs, found), change(array)
      arrays[name] = array
    for fused in self.fused:
      fused.join(arrays)
    kernels = [rule for rule in self.rules if rule.ours in _HEADS]
    bare = tuple(rule.theirs.rpartition('.')[0] for rule in kernels)
    return {
      ('' if name.startswith(bare) else prefix) + name: array
      for name, array in arrays.items()
    }

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
      if value is not None:
        found[key.ours] = key.values[value] if key.values else value
    return found

  def configured(self, model: nn.Module, *, has_head: bool) -> dict[str, Any]:
    """Inverts `options`: returns the `config.json` of a model."""
    found = {
      key: value(model) if callable(value) else value
      for key, value in self.config.items()
    }
    for key in self.keys:
      if key.theirs not in found:
        value = getattr(model, key.ours)
        back = {ours: theirs for theirs, ours in (key.values or {}).items()}
        found[key.theirs] = side(back.get(value, value))
    architectures = [found.pop('architectures')[has_head]]
    if has_head and self.composite:
      found = {'vision_config': found, 'model_type': self.composite}
    return found | {'architectures': architectures}

  def unlike(self, model: nn.Module, *, has_head: bool = True) -> list[str]:
    """Returns the attributes of a model that no model of the family has."""
    free = {*_FREE, *self.free, *(key.ours for key in self.keys)}
    if not has_head and any(r.ours == 'pre_logits/kernel' for r in self.rules):
      free.add('representation_size')
    fixed = {
      field.name: field.default
      for field in dataclasses.fields(vit.ViT)
      if field.name not in free and field.default is not dataclasses.MISSING
    } | {**self.fixed, 'pooling': self.pooling[has_head]}

    def differs(right, value):
      return not right(value) if callable(right) else value != right

    values = {name: getattr(model, name, None) for name in fixed}
    names = [k for k, v in values.items() if differs(fixed[k], v)]
    if not names:
      names = self.clashing(model)
    return [f'{name}={getattr(model, name, None)!r}' for name in names]

  def _rule(self, name, side, present=('/gate/',)):
    for rule in self.rules:
      found = _pattern(getattr(rule, side)).fullmatch(name)
      if found and any(rule.needs in other for other in present):
        return rule, found
    return None, None


def _twice(name: str, other: str) -> str:
  return (
    f'{name} and another name are both {other}: the file mixes two naming'
    ' schemes.'
  )


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
