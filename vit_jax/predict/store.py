"""Folders of features: shards with the same columns, and `_metadata.json`.

A shard's columns are

  index     int64 [N], the images' places in the data, from 0.
  name      the images' names: paths, or such as `train/17`.
  label     int32 [N]; int32 [N, M], padded with -1, if images have several; or
            absent.
  features  float32 or float16 [N, D]; of patches [N, rows, columns, D], which
            are lists of rows * columns * D numbers in Parquet. The metadata
            have the shape of an image's features as `shape`.

A `.parquet` or `.npz` file holds a shard, and appears under its name only when
it is complete.

pyarrow is an optional extra and slow to import, so only functions that need it
import it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from etils import epath

from vit_jax.evaluators.predictions import check_pyarrow
from vit_jax.interop import weight_files
from vit_jax.workdir import files

FORMATS = ('parquet', 'npz')
# Programs that read a folder of Parquet ignore names that begin with `_`.
METADATA = '_metadata.json'
_KIND = 'features of vit_jax'

Columns = Mapping[str, np.ndarray]


def shard_paths(
  folder: epath.Path, shards: int, suffix: str
) -> list[epath.Path]:
  """Returns the paths of the shards of a folder."""
  return [
    folder / f'features-{i:05d}-of-{shards:05d}.{suffix}' for i in range(shards)
  ]


def padded(labels: Sequence[Any]) -> np.ndarray:
  """Returns int32 [N], or int32 [N, M], padded with -1, of sequences."""
  if all(np.ndim(label) == 0 for label in labels):
    return np.array(labels, np.int32)
  whole = np.full((len(labels), max(map(len, labels))), -1, np.int32)
  for place, label in zip(whole, labels, strict=True):
    place[: len(label)] = label
  return whole


def write(path: epath.Path, columns: Columns) -> None:
  """Writes a shard; see the docstring of the module for its columns."""
  with files.atomic(path) as temporary, temporary.open('wb') as file:
    if path.suffix == '.npz':
      np.savez(file, **columns)
    else:
      _to_parquet(file, columns)


def _to_parquet(file: BinaryIO, columns: Columns) -> None:
  import pyarrow as pa
  from pyarrow import parquet

  features = columns['features']
  table = {
    'index': pa.array(columns['index'], pa.int64()),
    'name': pa.array(columns['name'].tolist(), pa.string()),
  }
  if 'label' in columns:
    label = columns['label']
    table['label'] = (
      pa.array(label, pa.int32())
      if label.ndim == 1
      else (pa.array([row[row >= 0] for row in label], pa.list_(pa.int32())))
    )
  table['features'] = pa.FixedSizeListArray.from_arrays(
    pa.array(features.ravel()), math.prod(features.shape[1:])
  )
  # Features do not repeat, so compression would only cost time.
  parquet.write_table(
    pa.table(table),
    file,
    use_dictionary=False,
    compression={'name': 'zstd'},
  )


def read(path: epath.Path, column: str) -> np.ndarray:
  """Reads one column of a shard, but no lists of labels."""
  with path.open('rb') as file:
    if path.suffix == '.npz':
      with np.load(file, allow_pickle=False) as columns:
        return columns[column]
    import pyarrow as pa
    from pyarrow import parquet

    # One column needs no threads; with them, a command once aborted at its end.
    table = parquet.ParquetFile(file).read([column], use_threads=False)
  found = table[column].combine_chunks()
  if pa.types.is_fixed_size_list(found.type):
    return found.flatten().to_numpy().reshape(-1, found.type.list_size)
  return found.to_numpy(zero_copy_only=False)


def write_metadata(folder: epath.Path, facts: Mapping[str, Any]) -> None:
  weight_files.write_json(folder / METADATA, {'kind': _KIND, **facts})


def read_metadata(folder: epath.Path) -> dict[str, Any] | None:
  """Returns the facts of a folder, or None if there are none.

  Raises:
    ValueError: the file is damaged or of another kind.
  """
  path = folder / METADATA
  if not path.exists():
    return None
  facts = files.read_object(
    path, 'delete the folder, and compute the features again'
  )
  if facts.pop('kind', None) != _KIND:
    raise ValueError(f'{path} was not written by vit_jax.features.')
  return facts


class Stored(Sequence[np.ndarray]):
  """A finished folder of features; its items are the features of each shard.

  Only the item that is asked for is read, so memory holds one shard at a time.

  Attributes:
    folder: its path.
    facts: its metadata.
  """

  def __init__(self, folder: epath.PathLike):
    """Reads the metadata.

    Raises:
      ValueError: there are no features, or they are not complete.
    """
    self.folder = files.absolute(folder)
    facts = read_metadata(self.folder)
    if facts is None:
      raise ValueError(
        f'{self.folder} holds no features: it has no {METADATA}. Make them with'
        ' python -m vit_jax.features.'
      )
    if 'rows' not in facts:
      raise ValueError(
        f'{self.folder} is incomplete: start the command that wrote it again.'
      )
    self.facts = facts
    if facts['format'] == 'parquet':
      check_pyarrow(str(self.folder))

    self._paths = shard_paths(self.folder, facts['shards'], facts['format'])

  def __len__(self) -> int:
    return len(self._paths)

  def __getitem__(self, shard: int) -> np.ndarray:
    """Returns the features of a shard, float32 [N, D], or of patches.

    Those of patches are [N, rows, columns, D].
    """
    features = read(self._paths[shard], 'features')
    # Older folders, which hold only vectors, do not tell it.
    shape = self.facts.get('shape', features.shape[1:])
    features = features.reshape(len(features), *shape)
    return features.astype(np.float32, copy=False)

  def vectors(self) -> np.ndarray:
    """Returns the features of all images, float32 [rows, D].

    Raises:
      ValueError: they are of patches.
    """
    if len(shape := self.facts.get('shape', [])) > 1:
      raise ValueError(
        f'{self.folder} has patches of each image, {shape}, but one vector is'
        ' needed: compute the features without /patches after the layer.'
      )
    return np.concatenate(list(self))

  def column(self, name: str) -> np.ndarray:
    """Returns a column of all shards: 'index', 'name', or 'label' if one."""
    parts = [read(path, name) for path in self._paths]
    # Of some shards, no image was readable.
    return np.concatenate([part for part in parts if len(part)])

  def labels(self) -> np.ndarray:
    """Returns the labels, int32 [rows].

    Raises:
      ValueError: the images have none, or several each, or some have none.
    """
    if self.facts['labels'] != 'one':
      raise ValueError(
        f'The images of {self.folder} have {self.facts["labels"]} labels, but'
        ' exactly one is needed: compute features of a --data with classes.'
      )
    labels = self.column('label')
    if (labels < 0).any():
      raise ValueError(
        f'{(labels < 0).sum()} of {len(labels)} images of {self.folder} have no'
        ' label: compute features of a split whose images all have one.'
      )
    return labels

  def check_comparable(self, other: 'Stored') -> None:
    """Raises ValueError if features or classes are not of the same kind."""
    keys = ('weights', 'layer', 'image_size', 'preprocess', 'decoding')
    for key in (*keys, 'class_names'):
      if self.facts[key] != other.facts[key]:
        raise ValueError(
          f'{self.folder} has {key}={self.facts[key]!r:.80}, but {other.folder}'
          f' has {key}={other.facts[key]!r:.80}: their features cannot be'
          ' compared.'
        )
