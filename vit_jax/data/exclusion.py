"""Lists of examples to leave out of a data set: `SPEC,exclude=FILE`.

`python -m vit_jax.dedup` writes such lists. Any data spec accepts one:
`folder:/data/birds,exclude=/data/dedup/exclude.json`. The file is JSON:

  {
    "kind": "vit_jax exclusion list",
    "dataset": "folder:/data/birds",
    "splits": {
      "train": {
        "examples": 1281167,
        "excluded": [17, 40512],
        "names": ["robin/a.jpg", "wren/b.jpg"]
      }
    }
  }

`examples` is the size of the split, `excluded` are ascending indices there, and
`names` the last two components of these examples' names. A list of another data
set is thus noticed. Where names are only numbers, as in TFDS, the entry also
has `facts`, a digest of the names of the split's files. Splits without an entry
stay whole.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from vit_jax.data import identity, source
from vit_jax.runtime import printable
from vit_jax.workdir import files

KIND = 'vit_jax exclusion list'
_MARK = ',exclude='
# The key of a split's facts that says what was left out; see `facts`.
FACTS = 'exclusion list'
_REMEDY = 'write it again with python -m vit_jax.dedup'


def split(spec: str) -> tuple[str, str]:
  """Splits `SPEC,exclude=FILE` into SPEC and FILE; FILE is '' without a list.

  Raises:
    ValueError: there are several lists, or a part is empty.
  """
  base, mark, path = spec.partition(_MARK)
  if (mark and not (base and path)) or _MARK in path:
    raise ValueError(
      f'Data spec {spec!r}: expected SPEC{_MARK}FILE, such as'
      f' folder:/data/birds{_MARK}/data/dedup/exclude.json, with a single list,'
      ' whose indices are those of the whole data set.'
    )
  return base, path


def join(spec: str, path: str) -> str:
  """Returns the data spec without the examples in a list; '' is no list."""
  return f'{spec}{_MARK}{path}' if path else spec


def write(
  path: epath.Path,
  opened: source.Source,
  excluded: Mapping[str, Sequence[int]],
) -> None:
  """Writes a list.

  Args:
    path: the file, local or in a bucket; an older one is replaced.
    opened: the whole data set.
    excluded: split -> indices of the examples to leave out, in any order.
  """
  splits = {
    name: _entry(opened, name, sorted(set(map(int, indices))))
    for name, indices in excluded.items()
  }
  content = {'kind': KIND, 'dataset': opened.info.spec, 'splits': splits}
  files.write_json(path, content, indent=None)


def _entry(
  opened: source.Source, name: str, indices: Sequence[int]
) -> dict[str, Any]:
  """Returns the entry of a split: the indices, and what tells the data."""
  entry = {
    'examples': opened.info.splits[name],
    'excluded': indices,
    'names': [identity.name_end(opened.name(name, index)) for index in indices],
  }
  # Other names of examples tell nothing. The facts may take a while.
  unnamed = type(opened).name is source.Source.name
  if unnamed and (facts := opened.facts(name)):
    entry['facts'] = identity.short_hash(facts)
  return entry


class Excluding(source.Source):
  """A data set without the examples in a list; its splits are smaller.

  The other examples keep their order, labels and names. The classes stay, even
  if one has no example left.
  """

  def __init__(self, whole: source.Source, path: str):
    """Reads the list, and checks that it is about these splits.

    Args:
      whole: the data set.
      path: the list, local or in a bucket.

    Raises:
      ValueError: there is no such list; it is damaged; or it is about a data
        set with other splits, sizes or names.
    """
    self._whole = whole
    self.others, self.sorted_by_class = whole.others, whole.sorted_by_class
    spec = join(whole.info.spec, path)
    _, lists = read(files.absolute(path))
    # The second has the number of examples that are kept before each excluded.
    self._excluded, self._kept_before = {}, {}
    for name, entry in lists.items():
      _check(printable.name(spec), whole, name, entry)
      indices = np.array(entry['excluded'], np.int64)
      self._excluded[name] = indices
      self._kept_before[name] = indices - np.arange(len(indices))
    self._digest = identity.short_hash(lists)
    left_out = sum(map(len, self._excluded.values()))
    total = sum(whole.info.splits[name] for name in lists)
    logging.info('%s leaves out %s of %s.', spec, f'{left_out:,}', f'{total:,}')
    splits = {
      name: size - len(self._excluded.get(name, ()))
      for name, size in whole.info.splits.items()
    }
    self.info = dataclasses.replace(whole.info, spec=spec, splits=splits)

  def _place(self, split: str, index: int) -> int:
    """Returns an example's index in the whole split, in O(log n)."""
    before = self._kept_before.get(split)
    if before is None:
      return index
    return int(index) + int(np.searchsorted(before, index, side='right'))

  def read(self, split: str, index: int) -> source.Record:
    return self._whole.read(split, self._place(split, index))

  def label(self, split: str, index: int) -> int | Sequence[int]:
    return self._whole.label(split, self._place(split, index))

  def name(self, split: str, index: int) -> str:
    return self._whole.name(split, self._place(split, index))

  def labels(self, split: str) -> np.ndarray | None:
    labels = self._whole.labels(split)
    if labels is None:
      return None
    return np.delete(labels, self._excluded.get(split, []))

  def facts(self, split: str) -> dict[str, Any]:
    """Returns the facts of a split, with those of its list."""
    own = {
      'digest': self._digest,
      'excluded': len(self._excluded.get(split, ())),
      'of': self._whole.info.splits[split],
    }
    return {**self._whole.facts(split), FACTS: own}


def read(path: epath.Path) -> tuple[str, dict[str, dict[str, Any]]]:
  """Returns the data spec of a list, and its entries by split.

  Raises:
    ValueError: the file is missing or damaged, or is no list.
  """
  if not path.exists():
    raise ValueError(f'There is no list of exclusions {path}.')
  content = files.read_object(path, _REMEDY)
  lists = content.get('splits')
  if content.get('kind') != KIND or not isinstance(lists, dict):
    raise ValueError(
      f'{path} is no list of exclusions: its "kind" is'
      f' {content.get("kind")!r}, expected {KIND!r} and "splits". Lists are'
      ' written by python -m vit_jax.dedup.'
    )
  return str(content.get('dataset', '')), lists


def _check(
  spec: str, whole: source.Source, name: str, entry: Mapping[str, Any]
) -> None:
  """Raises ValueError unless a list of the data would have the same entry."""
  remedy = (
    'Compare this copy of the data set with the one that the list was made'
    f' for, or {_REMEDY} for this one.'
  )
  size, indices = whole.info.splits.get(name), entry.get('excluded', ())
  if size is None:
    raise ValueError(
      f'{spec}: the list is for other data: it is about the split {name!r}, and'
      f' the splits of the data are {sorted(whole.info.splits)}. {remedy}'
    )
  own = _entry(whole, name, sorted({i for i in indices if 0 <= i < size}))
  for key in ('examples', 'excluded', 'names', 'facts'):
    expected, found = entry.get(key), own.get(key)
    # Older lists lack the facts.
    if expected == found or (key == 'facts' and expected is None):
      continue
    if isinstance(expected, list) and isinstance(found, list):
      pairs = itertools.zip_longest(expected, found)
      expected, found = next((a, b) for a, b in pairs if a != b)
    raise ValueError(
      f'{spec}: the list is for other data, or is damaged: {key!r} of the split'
      f' {name!r} has {expected!r} in the list, and {found!r} in the data.'
      f' {remedy}'
    )
  if size and len(indices) == size:
    raise ValueError(f'{spec}: the list excludes all examples of {name!r}.')
