"""`parquet:PATH` and `hf:NAME_OR_PATH[:CONFIG]`: tables that hold images.

Parquet stores rows in groups, and reading a row reads its group. That is fine
for reading in order. In random order each image costs a whole group, so a
warning names the command that prepares such data.

Hugging Face's library `datasets` downloads and converts a data set of the Hub
once, into files that it maps into memory, so that any row is read by its index.
A folder may be one that `Dataset.save_to_disk` has written, or one that
`load_dataset` reads.
"""

import functools
import logging as python_logging
import os
import shlex
import time
from collections.abc import Sequence

import numpy as np
from absl import logging
from etils import epath

from vit_jax.data import identity, source
from vit_jax.data.sources import labels as labels_lib
from vit_jax.data.sources import listing
from vit_jax.runtime import installed, json_text, printable

# Row groups that are kept after a row of them was read. Rows that are read in
# order lie in few.
_GROUPS = 8
# Groups above this size make reading in random order slow.
_LARGE = 2**20


def _check_keys(columns: Sequence[str], image_key, label_key, where) -> None:
  for flag, key in (('image_key', image_key), ('label_key', label_key)):
    if key not in columns:
      raise ValueError(
        f'{where} has no column {flag}={key!r}; its columns are {columns}.'
      )


class Parquet(labels_lib.Numbered):
  """Rows of Parquet files, in the order of the files.

  An image is bytes, or a struct with `bytes`, as the Hub stores it.
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
    import pyarrow as pa
    import pyarrow.parquet as pq

    spec, root = f'parquet:{path}', os.path.expanduser(path)
    self._image_key = image_key
    # Split -> [(path, index of the row group, and the time of its opening)].
    self._groups = {}
    # The files may change until another source opens them.
    now = time.time_ns()
    labels, ends, names, largest = {}, {}, None, 0
    try:
      paths = listing.shards(root, ('.parquet',))
    except ValueError as error:
      raise ValueError(f'{spec}: {error}') from error
    for path in paths:
      split = listing.shard_split(path, root)
      of = labels.setdefault(split, [])
      try:
        with epath.Path(path).open('rb') as f:
          file = pq.ParquetFile(f)
          _check_columns(file.schema_arrow, image_key, label_key, path)
          names = labels_lib.same_names(
            names, _hub_names(file.schema_arrow, label_key), path
          )
          of += file.read([label_key])[label_key].to_pylist()
      except (OSError, pa.ArrowException) as error:
        raise ValueError(
          f'{spec}: {printable.name(path)} cannot be read: {error}'
        ) from error
      for index in range(file.num_row_groups):
        group = file.metadata.row_group(index)
        ends.setdefault(split, []).append(group.num_rows)
        self._groups.setdefault(split, []).append((path, index, now))
        largest = max(largest, group.total_byte_size)
    if not all(labels.values()):
      raise ValueError(f'{spec}: a split has no rows: {sorted(labels)}.')
    # Split -> where each row group ends, int64.
    self._ends = {split: np.cumsum(of) for split, of in ends.items()}
    if largest > _LARGE:
      command = ['python', '-m', 'vit_jax.prepare_data', f'--source={spec}']
      logging.warning(
        '%s: each image costs a row group of up to %d MB when images are read'
        ' in random order, as in training. This makes them fast: %s',
        *(spec, largest / 1e6, shlex.join([*command, '--to=DIR'])),
      )
    super().__init__(
      spec,
      labels,
      names,
      num_classes=num_classes,
      key=label_key,
      is_remote=listing.is_remote(root),
    )

  def read(self, split: str, index: int) -> source.Record:
    """Reads one row's image, undecoded."""
    group = int(np.searchsorted(self._ends[split], index, side='right'))
    begin = int(self._ends[split][group - 1]) if group else 0
    column = _read_group(*self._groups[split][group], self._image_key)
    image = column[index - begin].as_py()
    if isinstance(image, dict):
      image = image['bytes']
    # Without bytes it cannot be decoded, like any other damaged image.
    return source.Record(
      image or b'', self.label(split, index), f'{split}/{index}'
    )

  def facts(self, split: str) -> dict[str, str]:
    """Returns a digest of the number of rows of each group, and of labels."""
    groups = identity.short_hash(self._ends[split])
    return {'row groups': groups} | super().facts(split)


@functools.lru_cache(_GROUPS)
def _read_group(path: str, index: int, opened: int, image_key: str):
  """Returns the images of a row group, as a column of pyarrow."""
  del opened  # Part of the key by which the column is kept.
  import pyarrow.parquet as pq

  with epath.Path(path).open('rb') as f:
    return pq.ParquetFile(f).read_row_group(index, [image_key])[image_key]


def _check_columns(schema, image_key: str, label_key: str, path: str) -> None:
  import pyarrow as pa

  _check_keys(schema.names, image_key, label_key, printable.name(path))
  kind = schema.field(image_key).type
  if pa.types.is_struct(kind):
    index = kind.get_field_index('bytes')
    kind = kind.field(index).type if index >= 0 else kind
  if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
    raise ValueError(
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


class HuggingFace(labels_lib.Numbered):
  """A data set of the Hub, or of a local folder."""

  def __init__(
    self,
    name: str,
    *,
    image_key: str = 'image',
    label_key: str = 'label',
    num_classes: int | None = None,
  ):
    """Opens the data set; downloads and converts it if that is necessary.

    Args:
      name: a name on the Hub with an optional config, such as
        `ylecun/mnist` or `org/set:config`; or a local folder.
      image_key: the column of the images.
      label_key: the column of the labels.
      num_classes: number of classes, if the data set has no class names and
        some classes do not occur.

    Raises:
      ValueError: the data set cannot be opened, or a column is missing or of
        another kind.
    """
    installed.require('datasets', extra='datasets')
    import datasets

    spec = f'hf:{name}'
    self._image_key = image_key
    self._images = {}  # Split -> its column of images.
    labels, names = {}, None
    for split, rows in _open(os.path.expanduser(name), spec).items():
      where = f'{spec}, {split!r}'
      _check_keys(rows.column_names, image_key, label_key, where)
      image, label = rows.features[image_key], rows.features[label_key]
      if not isinstance(image, datasets.Image):
        raise ValueError(
          f'{where}: the column image_key={image_key!r} is {image}, and no'
          ' image.'
        )
      label = getattr(label, 'feature', label)
      if isinstance(label, datasets.ClassLabel):
        names = labels_lib.same_names(names, label.names, where)
      column = rows.select_columns([label_key]).with_format('arrow')[:]
      labels[split] = column[label_key].to_pylist()
      self._images[split] = rows.select_columns([image_key]).cast_column(
        image_key, datasets.Image(decode=False)
      )
    super().__init__(
      spec, labels, names, num_classes=num_classes, key=label_key
    )

  def read(self, split: str, index: int) -> source.Record:
    """Reads one row's image, undecoded."""
    image = self._images[split][index][self._image_key]
    content = image['bytes'] or b''
    if not content and image['path']:
      with open(image['path'], 'rb') as f:
        content = f.read()
    return source.Record(content, self.label(split, index), f'{split}/{index}')

  def facts(self, split: str) -> dict[str, str]:
    """Returns the number of rows, and a digest of the labels."""
    return {'rows': str(len(self._labels[split]))} | super().facts(split)


def _open(name: str, spec: str) -> dict:
  """Returns split -> `datasets.Dataset`."""
  import datasets

  is_folder = os.path.isdir(name)
  config = None
  if not is_folder and ':' in name:
    name, _, config = name.partition(':')
  saved = ('dataset_dict.json', 'state.json')
  try:
    if is_folder and any(os.path.exists(f'{name}/{file}') for file in saved):
      found = datasets.load_from_disk(name)
    else:
      found = datasets.load_dataset(name, config)
  except Exception as error:  # Of the network, the Hub, the files, ...
    raise ValueError(
      f'{spec} cannot be opened: {type(error).__name__}: {error}. Expected a'
      ' name on the Hub, such as hf:ylecun/mnist or hf:org/set:config, or a'
      ' folder that the library `datasets` reads.'
    ) from error
  finally:
    # It takes over the root logger's level of its own modules only.
    python_logging.getLogger('datasets').setLevel(python_logging.WARNING)
  return dict(found) if isinstance(found, dict) else {'train': found}
