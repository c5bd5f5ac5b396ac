"""Guards batches: the same rows for any hosts, threads, workers or resume."""

import dataclasses
import itertools
import logging
import subprocess
import sys
import threading
import time
import types

import cv2
import numpy as np
import pytest

from tests import several
from tests.tiny_run import tiny_config
from vit_jax import data
from vit_jax.config import inputs
from vit_jax.data import ops, pipeline
from vit_jax.data.batches import cache, loader
from vit_jax.data.batches.rows import Generators
from vit_jax.data.source import Record
from vit_jax.runtime import errors


@dataclasses.dataclass
class FakeView:
  """A picklable view. Record i is 8x9 noise of seed i, with label i.

  Attributes:
    n: number of records.
    corrupt: indices of records whose bytes are not an image.
    labels: index -> label, if the label is not the index.
  """

  n: int
  corrupt: tuple = ()
  labels: dict = dataclasses.field(default_factory=dict)

  def __len__(self):
    return self.n

  def __getitem__(self, index):
    assert 0 <= index < self.n
    image = b'no image' if index in self.corrupt else picture(index)
    return Record(image, self.labels.get(index, index), f'fake/{index}')


def picture(index):
  rng = np.random.default_rng(index)
  return rng.integers(0, 256, (8, 9, 3), dtype=np.uint8)


SMALL = 1 / 1024  # GiB.
CROP = ops.parse('random_crop|flip', image_size=(4, 5), channels=3)


WHOLE = ops.parse('', image_size=(8, 9), channels=3)


RESIZED = ops.parse('resize', image_size=(8, 9), channels=3)


def train(view, count, *, preprocess=CROP, **kwargs):
  """Returns `count` batches."""
  defaults = dict(batch_size=4, seed=0, num_classes=100, threads=0)
  batches = pipeline.train_batches(view, preprocess, **(defaults | kwargs))
  return list(itertools.islice(batches, count))


def evaluate(view, *, preprocess=WHOLE, **kwargs):
  """Returns all batches."""
  defaults = dict(batch_size=4, num_classes=100, threads=0)
  return list(pipeline.eval_batches(view, preprocess, **(defaults | kwargs)))


def rows_of(host, hosts, batch_size=8):
  """Returns the rows of a host if each host has an equal, consecutive share."""
  size = batch_size // hosts
  return range(host * size, (host + 1) * size)


def join(batches):
  """Concatenates batches along the rows."""
  return {
    key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]
  }


def assert_same(actual, expected):
  """Compares lists of batches."""
  assert len(actual) == len(expected)
  for a, b in zip(actual, expected, strict=True):
    assert a.keys() == b.keys()
    for key in a:
      assert a[key].dtype == b[key].dtype
      np.testing.assert_array_equal(a[key], b[key], err_msg=key)


# ---- Training ----------------------------------------------------------------


def test_train_batch_contents():
  [batch] = train(FakeView(5), 1)
  assert {key: (str(x.dtype), x.shape) for key, x in batch.items()} == {
    'image': ('uint8', (4, 4, 5, 3)),
    'label': ('int32', (4,)),
    'mask': ('bool', (4,)),
    'unreadable': ('bool', (4,)),
  }
  assert batch['mask'].all()
  assert not batch['unreadable'].any()
  assert type(batch['image']) is np.ndarray


def test_order_and_random_numbers_are_frozen():
  # Others would change the rows of resumed runs.
  labels = join(train(FakeView(5), 3))['label'].tolist()
  assert labels == [2, 3, 1, 0, 4, 3, 0, 1, 2, 4, 1, 3]
  generators = Generators(7)
  for index, expected in ((0, [88, 40, 29, 57]), (99, [29, 25, 18, 75])):
    assert generators(index).integers(100, size=4).tolist() == expected
    # What a stream has drawn before does not matter.
    assert generators(index).integers(100, size=4).tolist() == expected


@pytest.mark.parametrize('hosts, repeats', [(2, 1), (4, 3)])
def test_train_rows_are_the_same_on_any_number_of_hosts(hosts, repeats):
  view = FakeView(10, corrupt=(3,))
  kwargs = dict(batch_size=8, unreadable='skip-and-count', repeats=repeats)
  kwargs['start_step'] = 2
  expected = train(view, 6, **kwargs)
  parts = [
    train(view, 6, rows=rows_of(h, hosts), **kwargs) for h in range(hosts)
  ]
  assert parts[0][0]['label'].shape == (8 // hosts,)
  assert_same([join(step) for step in zip(*parts, strict=True)], expected)
  # Make sure that a row is a substitute.
  assert join(expected)['unreadable'].any()


@pytest.mark.parametrize('repeats', [1, 3])
def test_start_step_skips_batches(repeats):
  kwargs = dict(rows=rows_of(1, 2, batch_size=4), repeats=repeats)
  expected = train(FakeView(7), 8, **kwargs)
  assert_same(train(FakeView(7), 3, start_step=5, **kwargs), expected[5:])


@pytest.mark.parametrize('threads', [1, 4])
def test_the_number_of_threads_does_not_change_the_batches(threads):
  view = FakeView(10, corrupt=(3,))
  kwargs = dict(unreadable='skip-and-count', start_step=1)
  expected = train(view, 9, **kwargs)
  actual = train(view, 9, threads=threads, **kwargs)
  assert_same(actual, expected)
  kwargs.pop('start_step')
  actual = evaluate(view, threads=threads, **kwargs)
  assert_same(actual, evaluate(view, **kwargs))


def test_workers_do_not_change_the_batches():
  view = FakeView(10, corrupt=(3,))
  kwargs = dict(batch_size=4, seed=0, num_classes=100, start_step=3)
  options = dict(workers=2, threads=2, read_ahead=20)
  batches = pipeline.train_batches(
    view, CROP, unreadable='skip-and-count', **options, **kwargs
  )
  # The first ones are made by threads, until the workers are ready.
  actual = list(itertools.islice(until_ready(batches), 40))
  actual += itertools.islice(batches, 4)
  expected = train(view, len(actual), unreadable='skip-and-count', **kwargs)
  assert_same(actual, expected)
  assert type(actual[-1]['image']) is np.ndarray
  batches.close()


def until_ready(batches):
  """Yields batches until the workers have taken over."""
  while not batches.ready():
    yield next(batches)
    time.sleep(0.1)


_WORKING = """
import sys, time
from vit_jax import data
from vit_jax.data import ops
from vit_jax.data import pipeline

assert 'jax' not in sys.modules  # Workers would be slow to start.
if True:  # A worker must not run this file again.
  view = data.View(data.open_source('digits'), 'train')
  batches = pipeline.train_batches(
    view,
    ops.parse('', image_size=8, channels=1),
    **{'batch_size': 8, 'seed': 0, 'num_classes': 10, 'workers': 2},
  )
  while not batches.ready():
    next(batches)
  print(*batches.worker_ids(), flush=True)
  time.sleep(600)
"""


def test_workers_end_with_their_parent(tmp_path):
  script = tmp_path / 'working.py'
  script.write_text(_WORKING)
  command = [sys.executable, script]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
  assert len(workers) == 2
  several.wait_for(lambda: not any(map(several.is_running, workers)), 20)


# ---- Evaluation --------------------------------------------------------------


@pytest.mark.parametrize('hosts', [1, 2, 3])
def test_eval_is_every_example_once_in_order(hosts):
  parts = [
    evaluate(FakeView(8), batch_size=6, rows=rows_of(h, hosts, batch_size=6))
    for h in range(hosts)
  ]
  assert {len(part) for part in parts} == {2}
  assert pipeline.num_eval_batches(FakeView(8), 6) == 2
  assert parts[0][0]['image'].shape == (6 // hosts, 8, 9, 3)
  rows = join([join(step) for step in zip(*parts, strict=True)])
  assert rows['label'].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1]
  assert rows['mask'].tolist() == [True] * 8 + [False] * 4
  assert not rows['unreadable'].any()
  for i in range(8):
    np.testing.assert_array_equal(rows['image'][i], picture(i))
  assert not rows['image'][8:].any()


def test_an_unreadable_image_is_an_error_that_names_the_record():
  view = FakeView(6, corrupt=(4,))
  message = (
    'fake/4: cannot decode 8 bytes .* --config.data.unreadable=skip-and-count'
  )
  with pytest.raises(ValueError, match=message):
    train(view, 2)
  with pytest.raises(ValueError, match=message):
    evaluate(view)


def test_train_substitutes_an_unreadable_image():
  view = FakeView(10, corrupt=(3, 7))
  kwargs = dict(preprocess=WHOLE, unreadable='skip-and-count')
  rows = join(train(view, 25, **kwargs))
  # In each of ten epochs, two of ten records are unreadable.
  assert rows['unreadable'].sum() == 20
  assert rows['mask'].all()
  substitutes = rows['label'][rows['unreadable']]
  assert len(set(substitutes)) > 4
  for image, label in zip(rows['image'], rows['label'], strict=True):
    np.testing.assert_array_equal(image, picture(label))
  # The other rows do not change.
  sound = join(train(FakeView(10), 25, preprocess=WHOLE))
  np.testing.assert_array_equal(
    rows['label'][~rows['unreadable']], sound['label'][~rows['unreadable']]
  )


def test_train_gives_up_when_nothing_is_readable():
  view = FakeView(4, corrupt=(0, 1, 2, 3))
  with pytest.raises(ValueError, match=r'11 images in a row .*fake/'):
    train(view, 1, unreadable='skip-and-count')


def test_too_many_labels():
  view = FakeView(2, labels={0: [], 1: [3, 1, 2]})
  with pytest.raises(ValueError, match=r'fake/1 has 3 labels.*max_labels=1'):
    evaluate(view)
  # A view also names its data set and split; the message names the flag.
  shapes = data.View(data.open_source('shapes:all'), 'test[:2]')
  with pytest.raises(
    ValueError,
    match=r"test/0 has 6 labels in 'test\[:2\]' of 'shapes:all', .*"
    r' --config\.data\.max_labels',
  ):
    evaluate(shapes, preprocess=RESIZED)
  picked = data.Picked(shapes, [1])
  assert (len(picked), picked.name(0)) == (1, 'test/1')
  message = r"test/1 has label \d+, outside .* in '1 of test\[:2\]' of 'shapes:"
  with pytest.raises(ValueError, match=message):
    evaluate(picked, preprocess=RESIZED, max_labels=6, num_classes=6)
  # With several labels allowed, those past the limit are dropped and counted.
  rows = join(evaluate(view, max_labels=2))
  assert rows['label'].tolist() == [[-1, -1], [3, 1], [-1, -1], [-1, -1]]
  assert rows['truncated'].tolist() == [False, True, False, False]
  assert not join(evaluate(view, max_labels=3))['truncated'].any()


# ---- The cache ---------------------------------------------------------------


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


def counted(view, text, **kwargs):
  """Returns seven batches of the view."""
  preprocess = ops.parse(text, image_size=8, channels=3)
  options = dict(num_classes=9, threads=1, preprocess=preprocess) | kwargs
  return train(view, 7, **options)


@pytest.mark.parametrize(
  'text, repeats',
  [
    ('resize_small(12)|central_crop(10)|random_crop|flip', 1),
    ('resize(40)|random_crop|flip', 1),
    ('random_crop', 3),
    ('resize', 1),
    ('flip|resize', 1),
  ],
)
def test_rows_are_the_same_and_read_once(text, repeats):
  view, options = Counted(), {'batch_size': 6, 'repeats': repeats}
  kept = cache.Cache(SMALL)
  # One thread, since two may read a record at the same moment.
  assert_same(
    counted(view, text, cache=kept, **options),
    counted(Counted(), text, **options),
  )
  assert sorted(set(view.reads)) == list(range(9))
  assert len(view.reads) == 9 + 1  # The labels' shape is read before.


def test_a_full_cache_says_so_once(caplog):
  kept, view = cache.Cache(SMALL / 128), Counted()  # 8 KiB.
  with caplog.at_level(logging.WARNING):
    assert_same(
      counted(view, 'random_crop', cache=kept),
      counted(Counted(), 'random_crop'),
    )
  assert len([r for r in caplog.messages if 'The cache is full' in r]) == 1
  assert len(view.reads) > 9 + 1  # Four images of 1,800 bytes fit.


@pytest.mark.parametrize(
  'values, message',
  [
    ({'cache': '/scratch'}, "'/scratch' must be 'memory'"),
    ({'cache': 'memory', 'cache_gib': 0.0}, 'more than 0'),
    ({'cache': 'memory', 'workers': 2}, 'workers=2 cannot share'),
  ],
)
def test_bad_settings_are_errors(values, message):
  config = tiny_config()
  config.data.update(values)
  with pytest.raises(ValueError, match=message):
    pipeline.Reading(**inputs.reading(config))


# ---- Reading ahead -----------------------------------------------------------


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


def slow_batches(view, **options):
  return pipeline.train_batches(
    view,
    ops.parse('random_crop|flip', image_size=8, channels=3),
    **dict(batch_size=16, seed=0, num_classes=64) | options,
  )


def test_threads_read_many_at_the_same_time():
  view = SlowView()
  batches = slow_batches(view, workers=0, threads=1, read_ahead=32)
  before = time.monotonic()
  actual = list(itertools.islice(batches, 6))
  # One after the other, 96 records of 0.05 s would take 4.8 s.
  assert time.monotonic() - before < 1.5
  batches.close()
  assert view.most == 32
  expected = slow_batches(SlowView(0), threads=0)
  assert_same(actual, list(itertools.islice(expected, 6)))


def test_an_error_of_a_read_is_that_of_its_batch():
  batches = slow_batches(SlowView(0, broken=7), workers=0, read_ahead=8)
  # Four batches are all records.
  with pytest.raises(errors.ReadError, match='the bucket is gone'):
    list(itertools.islice(batches, 4))


def test_a_read_that_hangs_does_not_keep_a_program():
  program = """
import time
from vit_jax import data
from vit_jax.data import ops, pipeline
from vit_jax.data.batches import loader

loader._END_SEC = 0.2

class Hanging(data.View):
  reads = 0

  def __getitem__(self, index):
    self.reads += 1
    time.sleep(600 * (self.reads > 1))
    return super().__getitem__(index)

view = Hanging(data.open_source('digits'), 'train')
batches = pipeline.train_batches(
  *(view, ops.parse('', image_size=8, channels=1)),
  **dict(batch_size=8, seed=0, num_classes=10, workers=0, read_ahead=4),
)
while view.reads < 5:
  time.sleep(0.01)
batches.close()
"""
  subprocess.run([sys.executable, '-c', program], check=True, timeout=60)


@pytest.mark.parametrize('remote', [False, True])
def test_only_buckets_are_read_ahead_unless_told(remote, monkeypatch):
  monkeypatch.setattr(loader, '_READ_AHEAD', 16)
  view = SlowView()
  view.split = 'train'
  view.source = types.SimpleNamespace(
    info=data.SourceInfo('slow', {'train': 64}, ('a',), is_remote=remote)
  )
  batches = slow_batches(view, workers=0, threads=1)
  next(batches)
  batches.close()
  assert (view.most > 5) == remote
