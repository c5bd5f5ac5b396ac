"""Makes rows of batches from records."""

import dataclasses
from collections.abc import Sequence
from concurrent import futures

import numpy as np
from absl import logging

from vit_jax.data.batches import cache
from vit_jax.data.batches.slots import Batch
from vit_jax.data.ops.decoding import CorruptImageError
from vit_jax.data.ops.preprocess import Preprocess
from vit_jax.data.source import Record
from vit_jax.runtime import errors

View = Sequence[Record]  # `source.View`, or anything with a length and items.

# The policies for an image that cannot be decoded. 'error' stops and names it.
# 'skip-and-count' marks it and, in training, replaces it by another image, or,
# in evaluation, leaves it out.
UNREADABLE_POLICIES = ('error', 'skip-and-count')

_MAX_SUBSTITUTES = 10


class Load:
  """Makes rows of records; picklable if the view is."""

  def __init__(
    self,
    view: View,
    preprocess: Preprocess,
    *,
    num_classes: int,
    max_labels: int,
    unreadable: str,
    images: cache.Images | None,
    tell: bool,
  ):
    """Reads one record.

    Args:
      view: the records.
      preprocess: turns a record's image into that of a row.
      num_classes: labels must lie in [0, num_classes).
      max_labels: the most labels of a record that are kept.
      unreadable: one of UNREADABLE_POLICIES.
      images: the cache of the view's images.
      tell: whether to log images that cannot be read.
    """
    if unreadable not in UNREADABLE_POLICIES:
      raise ValueError(
        f'unknown policy unreadable={unreadable!r}; choose from '
        f'{list(UNREADABLE_POLICIES)}'
      )
    self._view = view
    self._preprocess = preprocess
    self._num_classes = num_classes
    self._max_labels = max_labels
    self._images = images
    self._skip = unreadable == 'skip-and-count'
    self._tell = tell
    self._named: set[str] = set()
    # Read from one record, since masked rows need the shape of a label too.
    self._multi_label = max_labels > 1 or np.ndim(self.read(0)[0].label) > 0

  def train(
    self,
    index: int,
    rng: np.random.Generator,
    read: futures.Future | None = None,
  ) -> Batch:
    """Returns the row of a record, or of a substitute for it.

    Args:
      index: the record.
      rng: the row's generator.
      read: gives what `read` returned for it, if that was called before.
    """
    for attempt in range(_MAX_SUBSTITUTES + 1):
      record, made = read.result() if read else self.read(index)
      if row := self._row(index, record, made, rng):
        return row | {'unreadable': attempt > 0}
      index, read = int(rng.integers(len(self._view))), None
    raise ValueError(
      f'{_MAX_SUBSTITUTES + 1} images in a row{self._in_data()} are unreadable;'
      f' the last is {record.name}; check the data set'
    )

  def evaluate(
    self,
    index: int,
    rng: np.random.Generator,
    read: futures.Future | None = None,
  ) -> Batch:
    """Returns the row of a record; masked past the end or if unreadable."""
    if index >= len(self._view):
      return self.masked_row()
    record, made = read.result() if read else self.read(index)
    row = self._row(index, record, made, rng)
    return row or self.masked_row() | {'unreadable': True}

  def read(self, index: int) -> tuple[Record, int | None] | None:
    """Returns a record, and how many operations made it if it was kept.

    Past the end it returns None.
    """
    if index >= len(self._view):
      return None
    try:
      kept = self._images and self._images.get(index)
      return kept or (self._view[index], None)
    except Exception as error:
      # A worker process could not pickle some types of exceptions.
      raise errors.ReadError(
        f'reading record {index}{self._in_data()} failed:'
        f' {type(error).__name__}: {error}'
      ) from error

  def _in_data(self) -> str:
    """Returns the split and the data set for messages, if they are known."""
    source = getattr(self._view, 'source', None)
    return f' in {self._view.split!r} of {source.info.spec!r}' if source else ''

  def _row(
    self,
    index: int,
    record: Record,
    made: int | None,
    rng: np.random.Generator,
  ) -> Batch | None:
    """Returns a row; None if the image is unreadable and is to be skipped."""
    label, truncated = self._label(record)
    try:
      if self._images and made is None:
        image, made = self._preprocess.without_chance(record.image)
        record = dataclasses.replace(record, image=image)
        self._images.put(index, record, made)
      image = self._preprocess(record.image, rng, made or 0)
    except CorruptImageError as error:
      if not self._skip:
        raise ValueError(
          f'{record.name}: {error}; repair or remove it, or set '
          '--config.data.unreadable=skip-and-count'
        ) from error
      if self._tell and record.name not in self._named:
        self._named.add(record.name)
        logging.warning('Skipped %s: %s', record.name, error)
      return None
    except Exception as error:
      raise ValueError(f'{record.name}: {error}') from error
    return self._as_row(image, label, True, truncated)

  def masked_row(self) -> Batch:
    """Returns a row that does not count: zeros, without a label."""
    shape = (*self._preprocess.image_size, self._preprocess.channels)
    return self._as_row(
      np.zeros(shape, np.uint8), self._pad_labels([]), False, False
    )

  def _as_row(self, image, label, mask: bool, truncated: bool) -> Batch:
    row = {'image': image, 'label': label, 'mask': mask, 'unreadable': False}
    return row | {'truncated': truncated} if self._max_labels > 1 else row

  def _label(self, record: Record) -> tuple[np.ndarray | np.int32, bool]:
    """Returns the labels to keep, and whether the record has more."""
    label = record.label
    # Most records' way, as `np.ndim` takes long.
    single = isinstance(label, int) or np.ndim(label) == 0
    labels = [label] if single else list(label)
    if len(labels) > self._max_labels == 1:
      raise ValueError(
        f'{record.name} has {len(labels)} labels{self._in_data()}, more than '
        f'max_labels={self._max_labels}; set --config.data.max_labels to the '
        'most labels to keep per image'
      )
    for label in labels:
      if not 0 <= label < self._num_classes:
        raise ValueError(
          f'{record.name} has label {label}, outside of '
          f'[0, num_classes={self._num_classes}){self._in_data()}; repair the '
          'data set'
        )
    kept = labels[: self._max_labels]
    return self._pad_labels(kept), len(kept) < len(labels)

  def _pad_labels(self, labels: list[int]) -> np.ndarray | np.int32:
    if not self._multi_label:
      return np.int32(labels[0] if labels else -1)
    padded = np.full(self._max_labels, -1, np.int32)
    padded[: len(labels)] = labels
    return padded
