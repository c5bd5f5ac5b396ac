"""Guards reading ahead: many reads at the same time, the same rows."""

import itertools
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest

from vit_jax import data
from vit_jax.data import ops, pipeline
from vit_jax.data.source import Record
from vit_jax.runtime import errors

TEXT = 'random_crop|flip'


class SlowView:
  """64 images, each of which takes a round trip to read.

  Attributes:
    sec: seconds that a read takes.
    now: reads that are not yet done.
    most: the most of them at the same time.
    read: the index of each read.
  """

  def __init__(self, sec=0.05, broken=None):
    self.sec, self._broken = sec, broken
    self.now = self.most = 0
    self.read = []

  def __len__(self):
    return 64

  def __getitem__(self, index):
    with LOCK:
      self.now += 1
      self.read.append(index)
      self.most = max(self.most, self.now)
    time.sleep(self.sec)
    with LOCK:
      self.now -= 1
    if index == self._broken:
      raise OSError('the bucket is gone')
    image = np.random.default_rng(index).integers(256, size=(9, 9, 3))
    return Record(image.astype(np.uint8), index, f'slow/{index}')


LOCK = threading.Lock()


def train(view, **options):
  return pipeline.train_batches(
    view,
    ops.parse(TEXT, image_size=8, channels=3),
    **dict(batch_size=16, seed=0, num_classes=64) | options,
  )


def same(actual, expected):
  for a, b in zip(actual, expected, strict=True):
    for key in b:
      np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def test_threads_read_many_at_the_same_time():
  view = SlowView()
  batches = train(view, workers=0, threads=1, read_ahead=32)
  before = time.monotonic()
  actual = list(itertools.islice(batches, 6))
  # One after the other, 96 records of 0.05 s would take 4.8 s.
  assert time.monotonic() - before < 1.5
  batches.close()
  assert view.most == 32
  same(actual, itertools.islice(train(SlowView(0), threads=0), 6))


def test_an_error_of_a_read_is_that_of_its_batch():
  batches = train(SlowView(0, broken=7), workers=0, read_ahead=8)
  # Four batches are all records.
  with pytest.raises(errors.ReadError, match='the bucket is gone'):
    list(itertools.islice(batches, 4))


def test_a_read_that_hangs_does_not_keep_a_program():
  program = """
import time
from tests.data.test_read_ahead import SlowView, train

class Hanging(SlowView):
  def __getitem__(self, index):
    self.sec = 600 * bool(self.read)
    return super().__getitem__(index)

view = Hanging()
batches = train(view, workers=0, read_ahead=4)
while view.now < 4:
  time.sleep(0.01)
batches.close()
"""
  subprocess.run([sys.executable, '-c', program], check=True, timeout=60)


@pytest.mark.parametrize('remote', [False, True])
def test_only_buckets_are_read_ahead_unless_told(remote):
  view = SlowView()
  view.split = 'train'
  view.source = types.SimpleNamespace(
    info=data.SourceInfo('slow', {'train': 64}, ('a',), is_remote=remote)
  )
  batches = train(view, workers=0, threads=1)
  next(batches)
  batches.close()
  assert (view.most > 5) == remote
