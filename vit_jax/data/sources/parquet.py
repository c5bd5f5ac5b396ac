"""`parquet:PATH`: rows of Parquet files, such as those of the Hugging Face Hub.

Parquet stores rows in groups, and reading a row reads its group. That is fine
for reading in order. In random order each image costs a whole group, so a
warning names the command that prepares such data.
"""

import collections
import json
import os
import shlex
import threading

import numpy as np
from absl import logging
from etils import epath

from vit_jax.data import identity, source
from vit_jax.data.sources import labels as labels_lib
from vit_jax.data.sources import listing, tars
from vit_jax.runtime import installed, json_text, printable

# Groups that each thread keeps after it has read a row of them.
_GROUPS = 2
# Groups above this size make reading in random order slow.
_LARGE = 2**20


class _LayoutError(ValueError):
  """A file has other columns; pyarrow's own errors are ValueErrors, too."""


class Parquet(source.Source):
  """Images and labels in columns of Parquet files, in the order of the files.

  An image is bytes, or a struct with `bytes`, as the Hub stores it. A label is
  an integer, a text, or a list of either.
  """

  def __init__(
    self,
    path: str,
    *,
    image_key: str = 'image',
    label_key: str = 'label',
    num_classes: int | None = None,
  ):
    """Reads the labels; images are read later.

    Args:
      path: a file, or a folder of files; local or remote (`gs://`).
      image_key: the column of the images.
      label_key: the column of the labels.
      num_classes: number of classes, if the file has no class names and some
        classes do not occur.

    Raises:
      ValueError: there are no files, they differ, or a column is missing or of
        another kind.
    """
    installed.require('pyarrow', extra='parquet')
    spec = f'parquet:{path}'
    root = os.path.expanduser(path)
    self._image_key, self._label_key = image_key, label_key
    self._files = _files(root, spec)  # Split -> paths.
    self._ends = {}  # Split -> where each row group ends, int64.
    self._groups = {}  # Split -> [(path, index of the row group)].
    labels, names = {}, None
    for split, paths in self._files.items():
      labels[split], names = self._read_labels(split, paths, names, spec)
    numbered = labels_lib.number(
      labels, names, num_classes, f'{spec}: label_key={label_key!r}'
    )
    self._labels = numbered.labels
    self.others = numbered.others
    self.info = source.SourceInfo(
      spec=spec,
      splits={split: len(of) for split, of in self._labels.items()},
      class_names=numbered.names,
      multi_label=numbered.multi,
      is_remote=listing.is_remote(root),
    )
    self._kept = threading.local()

  def _read_labels(self, split, paths, names, spec):
    """Reads the labels of a split; returns them and the class names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    labels, ends, groups, largest = [], [], [], 0
    for path in paths:
      try:
        with epath.Path(path).open('rb') as f:
          file = pq.ParquetFile(f)
          schema = file.schema_arrow
          _check_columns(schema, self._image_key, self._label_key, path)
          names = labels_lib.same_names(
            names, _hub_names(schema, self._label_key), path
          )
          labels += file.read([self._label_key])[self._label_key].to_pylist()
          for index in range(file.num_row_groups):
            group = file.metadata.row_group(index)
            ends.append(group.num_rows)
            groups.append((path, index))
            largest = max(largest, group.total_byte_size)
      except _LayoutError:
        raise
      except (OSError, pa.ArrowException) as error:
        raise ValueError(
          f'{spec}: {printable.name(path)} cannot be read: {error}'
        ) from error
    if not labels:
      raise ValueError(f'{spec}: split {split!r} has no rows.')
    if largest > _LARGE:
      command = ['python', '-m', 'vit_jax.prepare_data', f'--source={spec}']
      logging.warning(
        '%s: each image of %r costs a row group of up to %d MB when images are'
        ' read in random order, as in training. This makes them fast: %s',
        *(spec, split, largest / 1e6, shlex.join([*command, '--to=DIR'])),
      )
    self._ends[split] = np.cumsum(ends)
    self._groups[split] = groups
    return labels, names

  def read(self, split: str, index: int) -> source.Record:
    """Reads one row's image, undecoded."""
    group = int(np.searchsorted(self._ends[split], index, side='right'))
    begin = int(self._ends[split][group - 1]) if group else 0
    image = self._column(split, group)[index - begin].as_py()
    if isinstance(image, dict):
      image = image['bytes']
    if image is None:
      image = b''  # It cannot be decoded, like any other damaged image.
    return source.Record(image, self.label(split, index), f'{split}/{index}')

  def label(self, split: str, index: int) -> int | tuple[int, ...]:
    """Returns the label without a read."""
    label = self._labels[split][index]
    return label if self.info.multi_label else int(label)

  def facts(self, split: str) -> dict[str, str]:
    """Returns a digest of the number of rows of each group, and of labels."""
    return {
      'row groups': identity.short_hash(self._ends[split]),
      'labels': identity.short_hash(
        json.dumps(self._labels[split]).encode()
        if self.info.multi_label
        else self._labels[split]
      ),
    }

  def _column(self, split: str, group: int):
    """Returns the images of a row group, as a column of pyarrow."""
    import pyarrow.parquet as pq

    kept = self._kept.__dict__.setdefault('groups', collections.OrderedDict())
    if (split, group) not in kept:
      path, index = self._groups[split][group]
      with epath.Path(path).open('rb') as f:
        table = pq.ParquetFile(f).read_row_group(index, [self._image_key])
      kept[split, group] = table[self._image_key]
      if len(kept) > _GROUPS:
        kept.popitem(last=False)
    kept.move_to_end((split, group))
    return kept[split, group]

  def __getstate__(self) -> dict:
    return {k: v for k, v in self.__dict__.items() if k != '_kept'}

  def __setstate__(self, state: dict) -> None:
    self.__dict__ = state | {'_kept': threading.local()}


def _files(root: str, spec: str) -> dict[str, list[str]]:
  """Returns the paths of the files of each split."""
  if root.endswith('.parquet'):
    paths = [root]
  else:
    folder = epath.Path(root)
    paths = sorted(_walk(root)) if folder.is_dir() else []
  if not paths:
    raise ValueError(
      f'{spec}: there is no file {root} with the suffix .parquet, and no folder'
      f' {root} that holds such files.'
    )
  found = collections.defaultdict(list)
  for path in paths:
    found[tars.shard_split(path, root)].append(path)
  return dict(found)


def _walk(folder: str):
  for name, is_folder in listing.entries(folder):
    if is_folder:
      yield from _walk(f'{folder}/{name}')
    elif name.endswith('.parquet'):
      yield f'{folder}/{name}'


def _check_columns(schema, image_key: str, label_key: str, path: str) -> None:
  import pyarrow as pa

  for flag, key in (('image_key', image_key), ('label_key', label_key)):
    if key not in schema.names:
      raise _LayoutError(
        f'{printable.name(path)} has no column {flag}={key!r}; its columns are'
        f' {schema.names}.'
      )
  kind = schema.field(image_key).type
  if pa.types.is_struct(kind):
    index = kind.get_field_index('bytes')
    kind = kind.field(index).type if index >= 0 else kind
  if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
    raise _LayoutError(
      f'{printable.name(path)}: the column image_key={image_key!r} is'
      f' {schema.field(image_key).type}; expected bytes, or a struct that'
      ' holds bytes.'
    )


def _hub_names(schema, label_key: str) -> list[str] | None:
  """Returns the class names that the Hub's libraries write; None if none."""
  try:
    facts = json_text.loads((schema.metadata or {})[b'huggingface'])
    feature = facts['info']['features'][label_key]
    return list(feature.get('feature', feature)['names'])
  except (KeyError, TypeError, AttributeError, ValueError):
    return None
