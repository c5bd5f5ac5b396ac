"""Computes features shard by shard, and continues where it was interrupted.

Axes: N images of a shard, D features, or rows, columns and D of patches.
"""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath

import vit_jax
from vit_jax import data
from vit_jax.checkpoint import fingerprint
from vit_jax.data import identity
from vit_jax.data.source import Record
from vit_jax.data.sources import listing
from vit_jax.images import Images
from vit_jax.interop import inference
from vit_jax.models import layers
from vit_jax.predict import store
from vit_jax.predict.predictor import Predictor
from vit_jax.runtime import installed, printable

DTYPES = ('float32', 'float16')
# Vectors of a shard, of images or of patches, if nothing is asked for.
_SHARD = 100_000

View = data.View | Images


def extract(
  model: Predictor,
  view: View,
  to: epath.Path,
  *,
  layer: str = layers.DEFAULT,
  suffix: str = 'parquet',
  dtype: str = 'float32',
  shard_size: int | None = None,
) -> dict[str, Any]:
  """Writes the features of images to a folder; see `store.py`.

  Shards that are already there are kept, if they are complete and of the same
  weights, images and settings.

  Args:
    model: the model, see `vit_jax.load`.
    view: the images. Those of a data set have labels.
    to: the folder.
    layer: the layer, see `layers`, such as 'block_5' or 'block_5/patches'.
    suffix: one of `store.FORMATS`.
    dtype: one of DTYPES, for the files.
    shard_size: images per shard, by default 100,000, or as many as have that
      many patches. One shard is in memory at a time.

  Returns:
    The folder's metadata.

  Raises:
    ValueError: the model has no such layer; the folder holds other features; a
      feature is not finite; or no image is readable.
  """
  model.check(layer)
  if suffix == 'parquet':
    store.check_pyarrow('--format=parquet')
  shape = _shape(model, layer)
  shard_size = shard_size or max(1, _SHARD // math.prod(shape[:-1]))
  facts = {
    **dict(layer=layer, format=suffix, dtype=dtype, shard_size=shard_size),
    **_facts(model, view),
    'images': len(view),
    'shards': -(-len(view) // shard_size),
  }
  _check_same(to, facts)
  to.mkdir(parents=True, exist_ok=True)
  versions = {'vit_jax': vit_jax.__version__, **installed.versions()}
  facts['shape'] = list(shape)
  facts |= {'checkpoint': model.origin, 'versions': versions}
  store.write_metadata(to, facts)
  shards = {
    path: range(len(view))[number * shard_size : (number + 1) * shard_size]
    for number, path in enumerate(
      store.shard_paths(to, facts['shards'], suffix)
    )
  }
  # A file that is there is complete.
  left = {path: rows for path, rows in shards.items() if not path.exists()}
  begun = time.monotonic()
  for number, (path, rows) in enumerate(left.items(), start=1):
    store.write(path, _compute(model, view, rows, facts))
    sec = (time.monotonic() - begun) / number * (len(left) - number)
    logging.info('Wrote %s, %s left.', path, printable.duration(sec))
  missing = [  # The unreadable images.
    index
    for path, rows in shards.items()
    for index in sorted({*rows} - {*store.read(path, 'index').tolist()})
  ]
  if len(missing) == len(view):
    raise ValueError(f'None of the {len(view)} images is readable.')
  facts |= {
    'rows': len(view) - len(missing),
    'unreadable': len(missing),
    'unreadable_names': list(map(view.name, missing)),
  }
  store.write_metadata(to, facts)
  return facts


def _shape(model: Predictor, layer: str) -> tuple[int, ...]:
  """Returns the shape of the features of an image."""
  size = model.mesh.size, *model.image_size, model.preprocess.channels
  function = layers.compiled(model.module, model.mesh, layer)
  images = jax.ShapeDtypeStruct(size, np.uint8)
  return jax.eval_shape(function, model.params, images).shape[1:]


def _facts(model: Predictor, view: View) -> dict[str, Any]:
  """Returns what a folder says about its model and images."""
  name, overrides = inference.describe(model.module)
  facts = {
    'model': {'name': name, **overrides},
    'weights': identity.short_hash(fingerprint.digests(model.params)),
    'image_size': list(model.image_size),
    'preprocess': model.preprocess.text,
    'decoding': {
      'upright': model.preprocess.upright,
      'jpeg_dct': model.preprocess.jpeg_dct,
    },
    'compute_dtype': np.dtype(model.module.dtype).name,
  }
  if isinstance(view, Images):
    facts |= {'labels': 'no', 'class_names': [], 'split': '', 'data': ''}
    # Sizes in a bucket are not looked up.
    digest = [
      [path, -1 if listing.is_remote(path) else epath.Path(path).stat().length]
      for path in view.items
    ]
  else:
    info, digest = view.source.info, data.digest(view)
    facts |= {
      'labels': 'several' if info.multi_label else 'one',
      'class_names': list(info.class_names),
      'split': view.split,
      'data': info.spec,
    }
  return facts | {'data_digest': identity.short_hash(digest)}


def _check_same(to: epath.Path, asked: Mapping[str, Any]) -> None:
  """Raises ValueError if a folder holds features of something else."""
  saved = store.read_metadata(to) or asked
  differing = [
    f'{key}={saved.get(key)!r:.60} there, {value!r:.60} now'
    for key, value in asked.items()
    if saved.get(key) != value
  ]
  if differing:
    raise ValueError(
      f'{to} holds other features: {"; ".join(differing)}. Use another'
      ' directory, or delete this one.'
    )


def _compute(
  model: Predictor,
  view: View,
  rows: range,
  facts: Mapping[str, Any],
) -> dict[str, np.ndarray]:
  """Returns the columns of a shard."""
  part, kept, features = _Part(view, rows), [], []
  for places, found, missing in model.batches(facts['layer'], part):
    with np.errstate(over='ignore'):  # Checked below, with a clear error.
      found = found.astype(facts['dtype'])
    axes = tuple(range(1, found.ndim))
    if (wrong := ~np.isfinite(found).all(axis=axes)).any():
      raise ValueError(
        f'The features of {view.name(rows[places[wrong][0]])} are not finite as'
        f' {facts["dtype"]}: use --dtype=float32 and --compute_dtype=float32,'
        ' or other weights.'
      )
    features.append(found)
    kept += [rows[i] for i in places]
    for index in missing:
      logging.warning('Not readable: %s', view.name(rows[index]))
  columns = {
    'index': np.array(kept, np.int64),
    'name': np.array(list(map(view.name, kept)), np.str_),
  }
  if facts['labels'] != 'no':
    columns['label'] = store.padded([part.labels[index] for index in kept])
  return columns | {'features': np.concatenate(features)}


class _Part(Sequence[Record]):
  """Some images of a view; `labels` keeps those that it has read, by index.

  Its records have the label 0, because a model may not know the classes.
  """

  def __init__(self, view: View, rows: range):
    self._view, self._rows = view, rows
    self.labels: dict[int, Any] = {}

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, place: int) -> Record:
    index = self._rows[place]
    record = self._view[index]
    self.labels[index] = record.label
    return dataclasses.replace(record, label=0)
