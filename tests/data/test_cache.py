"""Guards the cache of decoded images: the same rows, and no read twice."""

import dataclasses
import itertools
import logging
import os
import time

import cv2
import numpy as np
import pytest

from tests.tiny_run import tiny_config
from vit_jax.config import inputs
from vit_jax.data import ops, pipeline
from vit_jax.data.batches import cache
from vit_jax.data.source import Record

SMALL = 1 / 1024  # GiB.


@dataclasses.dataclass
class Counted:
  """Nine 20x30 PNG files, of which number 4 may be corrupt; counts reads."""

  corrupt: bool = False

  def __post_init__(self):
    self.reads = []

  def __len__(self):
    return 9

  def __getitem__(self, index):
    self.reads.append(index)
    image = np.random.default_rng(index).integers(256, size=(20, 30, 3))
    image = cv2.imencode('.png', image.astype(np.uint8))[1].tobytes()
    if self.corrupt and index == 4:
      image = image[:50]
    return Record(image, index, f'counted/{index}')


def rows(view, text, count=7, *, workers=0, **kwargs):
  batches = pipeline.train_batches(
    view,
    ops.parse(text, image_size=8, channels=3),
    **dict(batch_size=4, seed=0, num_classes=9, workers=workers) | kwargs,
  )
  while workers and not batches.ready():
    time.sleep(0.05)
  yield from itertools.islice(batches, count)
  batches.close()


def same(actual, expected):
  actual, expected = list(actual), list(expected)
  assert len(actual) == len(expected)
  for a, b in zip(actual, expected, strict=True):
    for key in b:
      np.testing.assert_array_equal(a[key], b[key], err_msg=key)


@pytest.mark.parametrize(
  'text',
  [
    'random_crop|flip',
    'resize_small(12)|central_crop(10)|random_crop|flip',
    'resize(40)|random_crop|flip',
    'resize',
    'flip|resize',
  ],
)
def test_rows_are_the_same_and_read_once(text):
  view = Counted()
  kept = cache.Cache(cache.MEMORY, SMALL)
  # One thread, since two may read a record at the same moment.
  same(rows(view, text, threads=1, cache=kept), rows(Counted(), text))
  assert sorted(set(view.reads)) == list(range(9))
  assert len(view.reads) == 9 + 1  # The labels' shape is read before.


def test_workers_share_it(tmp_path):
  kept, view = cache.Cache(str(tmp_path), SMALL), Counted()
  text = 'random_crop|flip'
  expected = list(rows(Counted(), text, 40))
  same(rows(view, text, 40, workers=2, cache=kept), expected)
  table = kept.table(view, ops.parse(text, image_size=8, channels=3))
  assert all(kept.get(table, index) for index in range(9))
  assert os.listdir(tmp_path) == []  # The file has no name.


def test_unreadable_images_are_replaced_as_without_it():
  options = dict(unreadable='skip-and-count', threads=1)
  kept = cache.Cache(cache.MEMORY, SMALL)
  same(
    rows(Counted(corrupt=True), 'random_crop', cache=kept, **options),
    rows(Counted(corrupt=True), 'random_crop', **options),
  )


def test_a_full_cache_says_so_once(caplog):
  kept, view = cache.Cache(cache.MEMORY, SMALL / 128), Counted()  # 8 KiB.
  with caplog.at_level(logging.WARNING):
    same(
      rows(view, 'random_crop', threads=1, cache=kept),
      rows(Counted(), 'random_crop'),
    )
  assert len([r for r in caplog.messages if 'The cache is full' in r]) == 1
  assert len(view.reads) > 9 + 1  # Four images of 1,800 bytes fit.


@pytest.mark.parametrize(
  'values, message',
  [
    ({'cache': '/nowhere'}, 'no local folder'),
    ({'cache': 'gs://bucket/x'}, 'no local folder'),
    ({'cache': 'memory', 'cache_gib': 1e9}, 'GiB that are free'),
    ({'cache': 'memory', 'cache_gib': 0.0}, 'more than 0'),
  ],
)
def test_bad_settings_are_errors(values, message):
  config = tiny_config()
  config.data.update(values)
  with pytest.raises(ValueError, match=message):
    inputs.reading(config)
