"""`parquet:PATH` and `hf:NAME_OR_PATH[:CONFIG]`: tables that hold images.

Hugging Face's library `datasets` downloads and converts a table once, into
files in its cache (`$HF_HOME`) that it maps into memory, so that any row is
read by its index. For `hf:`, a folder may be one that `Dataset.save_to_disk`
has written, or one that `load_dataset` reads.
"""

import logging as python_logging
import os
from collections.abc import Callable, Mapping, Sequence

from etils import epath

from vit_jax.data import source
from vit_jax.data.sources import labels as labels_lib
from vit_jax.data.sources import listing
from vit_jax.runtime import errors, installed, printable


class _Table(labels_lib.Numbered):
  """Rows with an image and a label, as the library `datasets` maps them."""

  def __init__(
    self,
    spec: str,
    tables: Mapping,
    image_key: str,
    label_key: str,
    num_classes: int | None,
    names: Sequence[str] | None = None,
  ):
    """Reads the labels; images are read later.

    Args:
      spec: the data spec.
      tables: split -> `datasets.Dataset`.
      image_key: the column of the images: bytes, or what the Hub stores.
      label_key: the column of the labels.
      num_classes: number of classes, if the data set has no class names and
        some classes do not occur.
      names: the class names, if they are known.

    Raises:
      ValueError: a column is missing or of another kind.
    """
    import datasets

    self._image_key = image_key
    self._images = {}  # Split -> its column of images.
    labels = {}
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

  def read(self, split: str, index: int) -> source.Record:
    """Reads one row's image, undecoded."""
    image = self._images[split][index][self._image_key] or {}
    # Without bytes it cannot be decoded, like any other damaged image.
    content = image.get('bytes') or b''
    if not content and image.get('path'):
      with open(image['path'], 'rb') as f:
        content = f.read()
    return source.Record(content, self.label(split, index), f'{split}/{index}')


class Parquet(_Table):
  """Rows of Parquet files, in the order of the files."""

  def __init__(
    self,
    path: str,
    *,
    image_key: str = 'image',
    label_key: str = 'label',
    num_classes: int | None = None,
  ):
    """Opens the files; converts them if that is necessary.

    Args:
      path: a file, or a folder of files; local or remote (`gs://`).
      image_key: see `_Table`, also for the following ones.
      label_key: the column of the labels.
      num_classes: number of classes, or None.

    Raises:
      ValueError: there are no files, they differ, or see `_Table`.
    """
    installed.require('datasets', extra='datasets')
    import datasets
    from pyarrow import parquet

    spec, root = f'parquet:{path}', os.path.expanduser(path)
    try:
      paths = listing.shards(root, ('.parquet',))
    except ValueError as error:
      raise ValueError(f'{spec}: {error}') from error
    shards, names = {}, None
    for path in paths:
      shards.setdefault(listing.shard_split(path, root), []).append(path)
      with epath.Path(path).open('rb') as f:
        features = _loaded(
          f'{spec}: {printable.name(path)}',
          lambda f=f: datasets.Features.from_arrow_schema(
            parquet.read_schema(f)
          ),
        )
      _check_keys(features, image_key, label_key, path)
      names = labels_lib.same_names(
        names, _class_names(features[label_key]), path
      )
    tables = _loaded(
      spec,
      lambda: datasets.load_dataset(
        'parquet', data_files=shards, columns=[image_key, label_key]
      ),
    )
    super().__init__(spec, tables, image_key, label_key, num_classes, names)

  def facts(self, split: str) -> dict[str, str]:
    """Returns a digest of the labels."""
    # Runs of older versions recorded the groups of rows.
    return {'row groups': errors.UNKNOWN} | super().facts(split)


class HuggingFace(_Table):
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
      image_key: see `_Table`, also for the following ones.
      label_key: the column of the labels.
      num_classes: number of classes, or None.

    Raises:
      ValueError: the data set cannot be opened, or see `_Table`.
    """
    installed.require('datasets', extra='datasets')
    spec, path = f'hf:{name}', os.path.expanduser(name)
    tables = _loaded(
      f'{spec} (expected a name on the Hub, such as hf:ylecun/mnist or'
      ' hf:org/set:config, or a folder that the library `datasets` reads)',
      lambda: _open(path),
    )
    super().__init__(spec, tables, image_key, label_key, num_classes)

  def facts(self, split: str) -> dict[str, str]:
    """Returns the number of rows, and a digest of the labels."""
    return {'rows': str(len(self._labels[split]))} | super().facts(split)


def _open(name: str):
  """Returns a `datasets.DatasetDict` or, without splits, a `Dataset`."""
  import datasets

  saved = ('dataset_dict.json', 'state.json')
  if any(os.path.exists(f'{name}/{file}') for file in saved):
    return datasets.load_from_disk(name)
  config = None
  if not os.path.isdir(name):
    name, _, config = name.partition(':')
  return datasets.load_dataset(name, config or None)


def _loaded(what: str, load: Callable):
  """Returns what a function of the library loads; a table is split `train`."""
  import datasets

  try:
    found = load()
  except Exception as error:  # Of the network, the Hub, the files, ...
    cause = error.__cause__ or error
    raise ValueError(
      f'{what} cannot be opened: {type(cause).__name__}: {cause}'
    ) from error
  finally:
    # It takes over the root logger's level of its own modules only.
    python_logging.getLogger('datasets').setLevel(python_logging.WARNING)
  return {'train': found} if isinstance(found, datasets.Dataset) else found


def _check_keys(features: Mapping, image_key, label_key, where: str) -> None:
  for flag, key in (('image_key', image_key), ('label_key', label_key)):
    if key not in features:
      raise ValueError(
        f'{where} has no column {flag}={key!r}; its columns are'
        f' {list(features)}.'
      )


def _class_names(feature) -> list[str] | None:
  """Returns the names that a column of labels states; None if none."""
  return getattr(getattr(feature, 'feature', feature), 'names', None)
