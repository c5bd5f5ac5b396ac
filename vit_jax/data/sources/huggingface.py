"""`hf:NAME_OR_PATH[:CONFIG]`: data sets of Hugging Face's `datasets` library.

The library downloads and converts a data set of the Hub once, into files that
it maps into memory, so that any row is read by its index. A folder may be one
that `Dataset.save_to_disk` has written, or one that `load_dataset` reads.
"""

import logging
import os

import numpy as np

from vit_jax.data import identity, source
from vit_jax.data.sources import labels as labels_lib
from vit_jax.runtime import installed


class HuggingFace(source.Source):
  """Images and labels of a data set of the Hub, or of a local folder.

  Images stay encoded as the data set stores them.
  """

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
    spec = f'hf:{name}'
    self._image_key, self._label_key = image_key, label_key
    self._splits = _open(os.path.expanduser(name), spec)
    names, labels = None, {}
    for split, rows in self._splits.items():
      where = f'{spec}, {split!r}'
      found = _check(rows, image_key, label_key, where)
      names = labels_lib.same_names(names, found, where)
      labels[split] = _labels(rows, label_key)
      self._splits[split] = _undecoded(rows, image_key)
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
    )

  def read(self, split: str, index: int) -> source.Record:
    """Reads one row's image, undecoded."""
    image = self._splits[split][index][self._image_key]
    content = image['bytes'] or b''
    if not content and image['path']:
      with open(image['path'], 'rb') as f:
        content = f.read()
    return source.Record(content, self.label(split, index), f'{split}/{index}')

  def label(self, split: str, index: int) -> int | tuple[int, ...]:
    """Returns the label without a read of the image."""
    label = self._labels[split][index]
    return label if self.info.multi_label else int(label)

  def facts(self, split: str) -> dict[str, str]:
    """Returns a digest of the number of rows and of the labels."""
    return {
      'rows': str(len(self._labels[split])),
      'labels': identity.short_hash(
        [*map(list, self._labels[split])]
        if self.info.multi_label
        else np.asarray(self._labels[split])
      ),
    }


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
    logging.getLogger('datasets').setLevel(logging.WARNING)
  return dict(found) if isinstance(found, dict) else {'train': found}


def _check(rows, image_key: str, label_key: str, where: str):
  """Checks the columns; returns the class names, or None."""
  import datasets

  for flag, key in (('image_key', image_key), ('label_key', label_key)):
    if key not in rows.features:
      raise ValueError(
        f'{where}: there is no column {flag}={key!r}; the columns are'
        f' {rows.column_names}.'
      )
  image = rows.features[image_key]
  if not isinstance(image, datasets.Image):
    raise ValueError(
      f'{where}: the column image_key={image_key!r} is {image}, and no image.'
    )
  label = rows.features[label_key]
  one = getattr(label, 'feature', label)
  return list(one.names) if isinstance(one, datasets.ClassLabel) else None


def _undecoded(rows, image_key: str):
  import datasets

  rows = rows.select_columns([image_key])
  return rows.cast_column(image_key, datasets.Image(decode=False))


def _labels(rows, label_key: str) -> list:
  return (
    rows.select_columns([label_key])
    .with_format('arrow')[:][label_key]
    .to_pylist()
  )
