"""`hf:NAME_OR_PATH[:CONFIG]`: data that Hugging Face's `datasets` reads.

The library downloads and converts a data set of the Hub once, into files that
it maps into memory, so that any row is read by its index. A folder may be one
that `Dataset.save_to_disk` has written, or one that `load_dataset` reads, such
as a folder of Parquet files.
"""

import logging as python_logging
import os

from vit_jax.data import source
from vit_jax.data.sources import labels as labels_lib
from vit_jax.runtime import installed


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
      for flag, key in (('image_key', image_key), ('label_key', label_key)):
        if key not in rows.column_names:
          raise ValueError(
            f'{where} has no column {flag}={key!r}; its columns are'
            f' {rows.column_names}.'
          )
      image, label = rows.features[image_key], rows.features[label_key]
      if not _holds_images(image):
        raise ValueError(
          f'{where}: the column image_key={image_key!r} is {image}; expected'
          ' images, bytes, or a struct that holds bytes.'
        )
      label = getattr(label, 'feature', label)
      if isinstance(label, datasets.ClassLabel):
        if names not in (None, label.names):
          raise ValueError(
            f'{where} has other class names than the splits before it. Write'
            ' all of them with one list of classes.'
          )
        names = label.names
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
    # Without an image it cannot be decoded, like any other damaged one.
    image = self._images[split][index][self._image_key] or {}
    content = image.get('bytes') or b''
    if not content and image.get('path'):
      with open(image['path'], 'rb') as f:
        content = f.read()
    return source.Record(content, self.label(split, index), f'{split}/{index}')

  def facts(self, split: str) -> dict[str, str]:
    """Returns the number of rows, and a digest of the labels."""
    return {'rows': str(len(self._labels[split]))} | super().facts(split)


def _holds_images(feature) -> bool:
  """Whether a column can be read as images.

  Parquet files that other programs wrote do not say that their bytes are.
  """
  import datasets

  if isinstance(feature, dict):
    return 'bytes' in feature
  is_bytes = getattr(feature, 'dtype', '') in ('binary', 'large_binary')
  return isinstance(feature, datasets.Image) or is_bytes


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
      f'{spec} cannot be opened: {type(error).__name__}:'
      f' {error.__cause__ or error}. Expected a name on the Hub, such as'
      ' hf:ylecun/mnist or hf:org/set:config, or a local folder that `datasets`'
      ' reads.'
    ) from error
  finally:
    # It takes over the root logger's level of its own modules only.
    python_logging.getLogger('datasets').setLevel(python_logging.WARNING)
  return dict(found) if isinstance(found, dict) else {'train': found}
