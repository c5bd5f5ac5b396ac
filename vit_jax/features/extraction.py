"""Computes features shard by shard, and continues where it was interrupted.

Axes: N images of a shard, D features.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

import vit_jax
from vit_jax import data
from vit_jax.checkpoint import fingerprint
from vit_jax.data import identity
from vit_jax.data.source import Record
from vit_jax.data.sources import listing
from vit_jax.features import store
from vit_jax.interop import inference
from vit_jax.models import layers
from vit_jax.predict.images import Images
from vit_jax.predict.predictor import Predictor
from vit_jax.runtime import installed, printable

DTYPES = ('float32', 'float16')
# What a computation finds; all other facts are what it was asked for.
_FOUND = ('rows', 'unreadable', 'unreadable_names', 'versions', 'checkpoint')
_SECONDS = 10.0  # Between two lines that tell the progress.

View = data.View | Images


def extract(
  model: Predictor,
  view: View,
  to: epath.Path,
  *,
  layer: str = layers.DEFAULT,
  suffix: str = 'parquet',
  dtype: str = 'float32',
  shard_size: int = 100_000,
) -> dict[str, Any]:
  """Writes the features of images to a folder; see `store.py`.

  Shards that are already there are kept, if they are complete and of the same
  weights, images and settings.

  Args:
    model: the model, see `vit_jax.load`.
    view: the images. Those of a data set have labels.
    to: the folder.
    layer: the layer, see `layers.names`.
    suffix: one of `store.FORMATS`.
    dtype: one of DTYPES, for the files.
    shard_size: images per shard. One shard is in memory at a time.

  Returns:
    The folder's metadata.

  Raises:
    ValueError: the model has no such layer; the folder holds other features; a
      feature is not finite; or no image is readable.
  """
  model.check_layer(layer)
  if suffix == 'parquet':
    store.check_pyarrow('--format=parquet')
  facts = _asked(model, view, layer, suffix, dtype, shard_size)
  _check_same(to, facts)
  to.mkdir(parents=True, exist_ok=True)
  facts |= {'checkpoint': model.origin, 'versions': _versions()}
  store.write_metadata(to, facts)
  clock = _Clock(len(view))
  missing = []  # The unreadable images.
  for shard in range(facts['shards']):
    rows = range(shard * shard_size, min((shard + 1) * shard_size, len(view)))
    path = store.shard_path(to, shard, facts['shards'], suffix)
    readable = _complete(path, rows)
    if readable is None:
      columns = _compute(model, layer, view, rows, dtype, clock)
      if facts['labels'] == 'no':
        del columns['label']
      store.write(path, columns)
      readable = columns['index']
    else:
      clock.skip(len(rows))
    missing += sorted(set(rows) - set(readable.tolist()))
  if len(missing) == len(view):
    raise ValueError(f'None of the {len(view)} images is readable.')
  facts |= {
    'rows': len(view) - len(missing),
    'unreadable': len(missing),
    'unreadable_names': [_name(view, i) for i in missing],
  }
  store.write_metadata(to, facts)
  return facts


def _versions() -> dict[str, str]:
  return {'vit_jax': vit_jax.__version__, **installed.versions()}


def _name(view: View, index: int) -> str:
  return view.names[index] if isinstance(view, Images) else view.name(index)


def _asked(
  model: Predictor,
  view: View,
  layer: str,
  suffix: str,
  dtype: str,
  shard_size: int,
) -> dict[str, Any]:
  """Returns the facts that all shards of a folder share."""
  name, overrides = inference.describe(model.module)
  facts = {
    'model': {'name': name, **overrides},
    'weights': identity.short_hash(fingerprint.digests(model.params)),
    'layer': layer,
    'image_size': list(model.image_size),
    'preprocess': model.preprocess.text,
    'decoding': {
      'upright': model.preprocess.upright,
      'jpeg_dct': model.preprocess.jpeg_dct,
    },
    'compute_dtype': np.dtype(model.module.dtype).name,
    'format': suffix,
    'dtype': dtype,
    'images': len(view),
    'shard_size': shard_size,
    'shards': -(-len(view) // shard_size),
  }
  if isinstance(view, Images):
    digest, spec = _digest_of_files(view), ''
    facts |= {'labels': 'no', 'class_names': [], 'split': ''}
  else:
    digest, spec = data.digest(view), view.source.info.spec
    several = view.source.info.multi_label
    facts |= {
      'labels': 'several' if several else 'one',
      'class_names': list(view.source.info.class_names),
      'split': view.split,
    }
  return facts | {'data': spec, 'data_digest': identity.short_hash(digest)}


def _digest_of_files(images: Images) -> list[list[Any]]:
  """Returns each file's name and size; sizes in a bucket are not looked up."""
  return [
    [path, -1 if listing.is_remote(path) else epath.Path(path).stat().length]
    for path in images.items
  ]


def _check_same(to: epath.Path, facts: Mapping[str, Any]) -> None:
  """Raises ValueError if a folder holds features of something else."""
  if to.exists() and not to.is_dir():
    raise ValueError(f'{to} is a file, expected a directory.')
  saved = store.read_metadata(to)
  if saved is None:
    if to.exists() and any(
      p.name.startswith('features-') for p in to.iterdir()
    ):
      raise ValueError(
        f'{to} holds features without {store.METADATA}, so nothing is known'
        ' about them: use another directory.'
      )
    return
  differing = [
    f'{key}={saved.get(key)!r:.60} there, {facts[key]!r:.60} now'
    for key in facts
    if key not in _FOUND and saved.get(key) != facts[key]
  ]
  if differing:
    raise ValueError(
      f'{to} holds other features: {"; ".join(differing)}. Use another'
      ' directory, or delete this one.'
    )


def _complete(path: epath.Path, rows: range) -> np.ndarray | None:
  """Returns the images in a shard; None if it is missing or damaged."""
  if not path.exists():
    return None
  try:
    index = store.read(path, 'index')
    size = len(store.read(path, 'features')) if path.suffix == '.npy' else None
    inside = index.ndim == 1 and set(index.tolist()) <= set(rows)
    if not inside or size not in (None, len(index)):
      raise ValueError(f'{path} holds other images.')
  except ValueError as error:
    logging.warning('%s It is computed again.', error)
    return None
  return index


def _compute(
  model: Predictor,
  layer: str,
  view: View,
  rows: range,
  dtype: str,
  clock: '_Clock',
) -> dict[str, np.ndarray]:
  """Returns the columns of a shard."""
  part = _Part(view, rows)
  function = layers.compiled(model.module, model.mesh, layer)
  features, kept = None, []
  for indices, readable, found in model.batches(function, part):
    if features is None:
      features = np.empty((len(rows), found.shape[1]), dtype)
    places = np.asarray(indices)[readable]
    with np.errstate(over='ignore'):  # Checked below, with a clear error.
      converted = found[readable].astype(dtype)
    _check_finite(converted, [part.names[i] for i in places], dtype)
    features[len(kept) : len(kept) + len(places)] = converted
    kept += places.tolist()
    for index in np.asarray(indices)[~readable].tolist():
      logging.warning('Not readable: %s', _name(view, rows[index]))
    clock.tell(len(indices))
  return {
    'index': np.array([rows[i] for i in kept], np.int64),
    'name': np.array([part.names[i] for i in kept], np.str_),
    'label': _padded([part.labels[i] for i in kept]),
    'features': features[: len(kept)],
  }


def _check_finite(features: np.ndarray, names: list[str], dtype: str) -> None:
  wrong = np.flatnonzero(~np.isfinite(features).all(axis=1))
  if len(wrong):
    raise ValueError(
      f'The features of {names[wrong[0]]} are not finite as {dtype}: use'
      ' --dtype=float32 and --compute_dtype=float32, or other weights.'
    )


def _padded(labels: list[Any]) -> np.ndarray:
  """Returns int32 [N], or int32 [N, M] if images have several labels."""
  if all(np.ndim(label) == 0 for label in labels):
    return np.array(labels, np.int32)
  padded = np.full((len(labels), max(map(len, labels))), -1, np.int32)
  for place, label in zip(padded, labels, strict=True):
    place[: len(label)] = label
  return padded


class _Part(Sequence[Record]):
  """Some images of a view; remembers the names and labels that it has read.

  Its records have the label 0, because a model may not know the classes.
  """

  def __init__(self, view: View, rows: range):
    self._view, self._rows = view, rows
    self.names: dict[int, str] = {}
    self.labels: dict[int, Any] = {}

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index: int) -> Record:
    record = self._view[self._rows[index]]
    self.names[index], self.labels[index] = record.name, record.label
    return dataclasses.replace(record, label=0)


class _Clock:
  """Logs the progress every few seconds."""

  def __init__(self, images: int):
    self._images, self._done, self._skipped = images, 0, 0
    self._start = self._told = time.monotonic()

  def skip(self, images: int) -> None:
    self._skipped += images
    if self._skipped == images:
      logging.info('Shards that are there already are kept.')

  def tell(self, images: int) -> None:
    self._done += images
    now = time.monotonic()
    if now - self._told < _SECONDS:
      return
    self._told = now
    rate = self._done / (now - self._start)
    there = self._done + self._skipped
    logging.info(
      '%s of %s images, %s images/s, %s left',
      *(f'{there:,}', f'{self._images:,}', f'{rate:,.0f}'),
      printable.duration((self._images - there) / rate),
    )
