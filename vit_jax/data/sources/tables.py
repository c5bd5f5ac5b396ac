"""`parquet:PATH` and `hf:NAME_OR_PATH[:CONFIG]`: tables that hold images.

Hugging Face's library `datasets` downloads and converts a table once, into
files in its cache (`$HF_HOME`) that it maps into memory, so that any row is
read by its index.
"""

import contextlib
import logging as python_logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from vit_jax.data import source
from vit_jax.data.sources import labels as labels_lib
from vit_jax.data.sources import listing
from vit_jax.runtime import errors, installed, printable


class HuggingFace(labels_lib.Numbered):
  """A data set of the Hub, or of a local folder.

  A folder may be one that `Dataset.save_to_disk` has written, or one that
  `load_dataset` reads. An image is bytes, or what the Hub stores.
  """

  _KIND = 'hf'

  def __init__(
    self,
    name: str,
    *,
    image_key: str = 'image',
    label_key: str = 'label',
    num_classes: int | None = None,
  ):
    """Opens the data set; downloads and converts it if that is necessary.

    Only labels are read; images are read later.

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

    spec = f'{self._KIND}:{name}'
    self._image_key = image_key
    self._images = {}  # Split -> its column of images.
    labels, names = {}, None
    tables = self._open(spec, os.path.expanduser(name), (image_key, label_key))
    for split, rows in tables.items():
      where = f'{spec}, {split!r}'
      _check_keys(rows.features, image_key, label_key, where)
      names = labels_lib.same_names(
        names, _class_names(rows.features[label_key]), where
      )
      column = rows.select_columns([label_key]).with_format('arrow')[:]
      labels[split] = column[label_key].to_pylist()
      try:
        self._images[split] = rows.select_columns([image_key]).cast_column(
          image_key, datasets.Image(decode=False)
        )
      except Exception as error:  # The library may raise any.
        raise ValueError(
          f'{where}: the column image_key={image_key!r} is'
          f' {rows.features[image_key]}; expected images, or their bytes.'
        ) from error
    super().__init__(
      spec, labels, names, num_classes=num_classes, key=label_key
    )

  def _open(self, spec: str, name: str, keys: tuple[str, str]) -> Mapping:
    """Returns split -> `datasets.Dataset`, which has at least the columns."""
    import datasets

    saved = ('dataset_dict.json', 'state.json')
    expected = (
      'Expected a name on the Hub, such as hf:ylecun/mnist or'
      ' hf:org/set:config, or a folder that the library `datasets` reads.'
    )
    with _opening(spec, expected):
      if any(os.path.exists(f'{name}/{file}') for file in saved):
        found = datasets.load_from_disk(name)
      elif os.path.isdir(name):
        found = datasets.load_dataset(name)
      else:
        name, _, config = name.partition(':')
        found = datasets.load_dataset(name, config or None)
    return {'train': found} if isinstance(found, datasets.Dataset) else found

  def read(self, split: str, index: int) -> source.Record:
    """Reads one row's image, undecoded."""
    image = self._images[split][index][self._image_key] or {}
    # Without bytes it cannot be decoded, like any other damaged image.
    content = image.get('bytes') or b''
    if not content and image.get('path'):
      with open(image['path'], 'rb') as f:
        content = f.read()
    return source.Record(content, self.label(split, index), f'{split}/{index}')

  def facts(self, split: str) -> dict[str, str]:
    """Returns the number of rows, and a digest of the labels."""
    return {'rows': str(len(self._labels[split]))} | super().facts(split)


class Parquet(HuggingFace):
  """Rows of a Parquet file, or of a folder of them, local or remote."""

  _KIND = 'parquet'

  def _open(self, spec, name, keys):
    import datasets
    from pyarrow import parquet

    try:
      paths = listing.shards(name, ('.parquet',))
    except ValueError as error:
      raise ValueError(f'{spec}: {error}') from error
    shards, features, names = {}, None, None
    for path in paths:
      shards.setdefault(listing.shard_split(path, name), []).append(path)
      where = f'{spec}: {printable.name(path)}'
      with _opening(where), epath.Path(path).open('rb') as f:
        found = datasets.Features.from_arrow_schema(parquet.read_schema(f))
      _check_keys(found, *keys, where)
      # The library would take the names of the first file, and no others.
      if names is None:
        features = datasets.Features({key: found[key] for key in keys})
      names = labels_lib.same_names(names, _class_names(found[keys[1]]), where)
    with _opening(spec):
      return datasets.load_dataset(
        'parquet', data_files=shards, columns=list(keys), features=features
      )

  def facts(self, split: str) -> dict[str, str]:
    """Returns a digest of the labels."""
    # Runs of older versions recorded the sizes of the groups of rows.
    labels = labels_lib.Numbered.facts(self, split)
    return {'row groups': errors.UNKNOWN} | labels


def _check_keys(features: Mapping, image_key, label_key, where: str) -> None:
  for flag, key in (('image_key', image_key), ('label_key', label_key)):
    if key not in features:
      raise ValueError(
        f'{where} has no column {flag}={key!r}; its columns are'
        f' {list(features)}.'
      )


def _class_names(feature: Any) -> list[str] | None:
  """Returns the names that a column of labels states; None if none."""
  return getattr(getattr(feature, 'feature', feature), 'names', None)


@contextlib.contextmanager
def _opening(what: str, expected: str = '') -> Iterator[None]:
  """Turns any error of the library into a ValueError that names the data."""
  try:
    yield
  except Exception as error:  # Of the network, the Hub, the files, ...
    cause = error.__cause__ or error
    raise ValueError(
      f'{what} cannot be opened: {type(cause).__name__}: {cause}. {expected}'
    ) from error
  finally:
    # The library takes over the root logger's level of its own modules only.
    python_logging.getLogger('datasets').setLevel(python_logging.WARNING)
