"""Guards batches: the same rows for any hosts, threads, workers or resume."""

import dataclasses
import itertools
import pathlib
import subprocess
import sys
import threading
import time

import cv2
import numpy as np
import pytest

from vit_jax import data
from vit_jax.data import ops, pipeline
from vit_jax.data.rows import Generators
from vit_jax.data.source import Record


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


class BrokenView(FakeView):
  """A view that fails at record 3 with an exception that cannot be pickled."""

  def __getitem__(self, index):
    if index == 3:

      class LocalError(Exception):
        pass

      raise LocalError('the disk is gone')
    return super().__getitem__(index)


def picture(index):
  rng = np.random.default_rng(index)
  return rng.integers(0, 256, (8, 9, 3), dtype=np.uint8)


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


# Training.


def test_train_batch_contents():
  batch = train(FakeView(5), 1)[0]
  assert {key: (str(x.dtype), x.shape) for key, x in batch.items()} == {
    'image': ('uint8', (4, 4, 5, 3)),
    'label': ('int32', (4,)),
    'mask': ('bool', (4,)),
    'unreadable': ('bool', (4,)),
  }
  assert batch['mask'].all()
  assert not batch['unreadable'].any()
  assert type(batch['image']) is np.ndarray


def test_train_rows_are_the_records():
  batch = train(FakeView(7), 1, preprocess=WHOLE)[0]
  for image, label in zip(batch['image'], batch['label'], strict=True):
    np.testing.assert_array_equal(image, picture(label))


def test_train_order_is_frozen():
  # These labels are fixed, since another order would break resumed runs.
  labels = join(train(FakeView(5), 3))['label'].tolist()
  assert labels == [2, 3, 1, 0, 4, 3, 0, 1, 2, 4, 1, 3]


class SortedView:
  """Records sorted by class, like class folders, with one-pixel images."""

  def __init__(self, size, classes):
    self._size = size
    self._classes = classes
    self._image = np.zeros((1, 1, 1), np.uint8)

  def __len__(self):
    return self._size

  def __getitem__(self, index):
    return Record(self._image, index * self._classes // self._size, '')


def test_sorted_records_are_shuffled_like_random_ones():
  """Checks the beginning of an epoch of ImageNet-21k's size.

  With Grain's own shuffle, 111 neighbours share a class. The counts of a batch
  correlate at 0.1 with those of the next batch and vary 1.4 times as much. The
  last statistic is 19,365.
  """
  size, classes, batch, steps = 12_400_000, 21_841, 500, 240
  batches = pipeline.train_batches(
    SortedView(size, classes),
    ops.parse('', image_size=(1, 1), channels=1),
    **dict(batch_size=batch, seed=0, num_classes=classes, threads=0),
  )
  labels = join(list(itertools.islice(batches, steps)))['label']
  # By chance, 5.5 +- 2.3 of 120,000 pairs share one of 21,841 classes.
  assert (labels[1:] == labels[:-1]).sum() < 15
  # A hundred groups of classes, so that each occurs.
  groups = labels * 100 // classes
  counts = np.stack(
    [np.bincount(x, minlength=100) for x in groups.reshape(steps, batch)]
  )
  centred = counts - batch / 100
  # If the counts are multinomial, this is 1 +- 0.01.
  variance = np.mean(centred**2) / (batch / 100 * (1 - 1 / 100))
  assert variance == pytest.approx(1, abs=0.03)
  correlation = np.mean(centred[1:] * centred[:-1]) / np.mean(centred**2)
  assert abs(correlation) < 0.03
  # mixup blends neighbours, which must be independent.
  table = np.zeros((10, 10))
  np.add.at(table, tuple(groups.reshape(-1, 2).T // 10), 1)
  expected = table.sum() / 100
  # Chi-squared with 99 degrees of freedom is 99 +- 14.
  assert ((table - expected) ** 2 / expected).sum() < 99 + 5 * 14


class ConcurrentView(FakeView):
  """A view that reads only while `parties` threads read at the same time."""

  parties = 4

  def __getitem__(self, index):
    if index:  # The first record is also read alone for its label's shape.
      self.barrier.wait(20)
    return super().__getitem__(index)


def test_all_threads_work_on_the_same_batch():
  view = ConcurrentView(33)
  view.barrier = threading.Barrier(4)
  batches = evaluate(view, batch_size=33, threads=4, preprocess=WHOLE)
  assert [len(batch['label']) for batch in batches] == [33]


def test_each_epoch_has_a_different_permutation():
  # 15 batches of 4 are 6 epochs of 10, and epochs end inside batches.
  labels = join(train(FakeView(10), 15))['label']
  epochs = labels.reshape(6, 10)
  assert (np.sort(epochs, axis=1) == np.arange(10)).all()
  assert len({tuple(epoch) for epoch in epochs}) == 6


def test_augmentation_differs_between_epochs_and_seeds():
  view = FakeView(1)
  images = join(train(view, 10))['image'].reshape(40, -1)
  # There are 5 * 5 offsets and two directions; 40 draws repeat a few of them.
  assert len(np.unique(images, axis=0)) > 20
  other = join(train(view, 10, seed=1))['image'].reshape(40, -1)
  assert (images != other).any(axis=1).mean() > 0.8


def test_order_differs_between_seeds():
  orders = {
    tuple(join(train(FakeView(10), 5, seed=seed))['label']) for seed in range(5)
  }
  assert len(orders) == 5


@pytest.mark.parametrize('hosts', [2, 4])
def test_train_rows_are_the_same_on_any_number_of_hosts(hosts):
  view = FakeView(10, corrupt=(3,))
  kwargs = dict(batch_size=8, unreadable='skip-and-count', start_step=2)
  expected = train(view, 6, **kwargs)
  parts = [
    train(view, 6, rows=rows_of(h, hosts), **kwargs) for h in range(hosts)
  ]
  assert parts[0][0]['label'].shape == (8 // hosts,)
  assert_same([join(step) for step in zip(*parts, strict=True)], expected)
  # Make sure that a row is a substitute.
  assert join(expected)['unreadable'].any()


def test_rows_of_a_host_may_be_scattered_and_unordered():
  # The devices of a host may lie anywhere in the mesh.
  kwargs = dict(batch_size=6, start_step=1)
  picked = train(FakeView(7), 4, rows=(4, 0, 5), **kwargs)
  for batch, whole in zip(picked, train(FakeView(7), 4, **kwargs), strict=True):
    for key, value in batch.items():
      np.testing.assert_array_equal(value, whole[key][[4, 0, 5]])


@pytest.mark.parametrize('start', [1, 5])
@pytest.mark.parametrize('host', [0, 1])
def test_start_step_skips_batches(start, host):
  kwargs = dict(rows=rows_of(host, 2, batch_size=4))
  expected = train(FakeView(7), 8, **kwargs)
  actual = train(FakeView(7), 8 - start, start_step=start, **kwargs)
  assert_same(actual, expected[start:])


def test_start_far_away():
  # This start is ten million epochs away, and must not make earlier batches.
  batch = train(FakeView(8), 1, start_step=2 * 10**7)[0]
  assert set(batch['label']) <= set(range(8))


@pytest.mark.parametrize('threads, prefetch', [(1, None), (4, None), (2, 5)])
def test_the_number_of_threads_does_not_change_the_batches(threads, prefetch):
  view = FakeView(10, corrupt=(3,))
  kwargs = dict(unreadable='skip-and-count', start_step=1)
  expected = train(view, 9, **kwargs)
  actual = train(view, 9, threads=threads, prefetch=prefetch, **kwargs)
  assert_same(actual, expected)
  kwargs.pop('start_step')
  actual = evaluate(view, threads=threads, prefetch=prefetch, **kwargs)
  assert_same(actual, evaluate(view, **kwargs))


def test_the_number_of_workers_does_not_change_the_batches():
  view = FakeView(10, corrupt=(3,))
  kwargs = dict(batch_size=4, seed=0, num_classes=100, start_step=3)
  batches = pipeline.train_batches(
    view, CROP, workers=2, unreadable='skip-and-count', **kwargs
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


def test_random_numbers_of_a_row_are_frozen():
  # Other numbers would change the augmentation of resumed runs.
  generators = Generators(7)
  for index, expected in ((0, [88, 40, 29, 57]), (99, [29, 25, 18, 75])):
    assert generators(index).integers(100, size=4).tolist() == expected
    # What a stream has drawn before does not matter.
    assert generators(index).integers(100, size=4).tolist() == expected


_WORKING = """
import os, signal, time
from vit_jax import data
from vit_jax.data import ops, pipeline

if __name__ == '__main__':
  view = data.View(data.open_source('digits'), 'train')
  batches = pipeline.train_batches(
    view,
    ops.parse('', image_size=8, channels=1),
    **{'batch_size': 8, 'seed': 0, 'num_classes': 10, 'workers': 2},
  )
  while not batches.ready():
    next(batches)
  workers = batches.worker_ids()
  for pid in workers:
    for number in (signal.SIGINT, signal.SIGHUP):
      os.kill(pid, number)  # These go to the whole group of the terminal.
  time.sleep(0.5)
  for _ in range(20):
    next(batches)
  print(*workers)
"""


def test_workers_end_with_their_parent(tmp_path):
  script = tmp_path / 'working.py'
  script.write_text(_WORKING + '  print(flush=True)\n  time.sleep(600)\n')
  with subprocess.Popen(
    [sys.executable, script], stdout=subprocess.PIPE, text=True
  ) as parent:
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
  assert len(workers) == 2
  deadline = time.monotonic() + 20
  while any(map(_is_running, workers)) and time.monotonic() < deadline:
    time.sleep(0.05)
  assert not any(map(_is_running, workers))


def test_workers_end_when_their_parent_ends(tmp_path):
  script = tmp_path / 'working.py'
  script.write_text(_WORKING)
  result = subprocess.run(
    [sys.executable, script], capture_output=True, text=True, timeout=60
  )
  assert (result.returncode, result.stderr) == (0, '')
  workers = [int(pid) for pid in result.stdout.split()]
  assert len(workers) == 2
  assert not any(map(_is_running, workers))


def _is_running(pid):
  try:
    text = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except OSError:
    return False
  # Zombies count as ended, since nothing collects their exit status.
  return text.rpartition(')')[2].split()[0] != 'Z'


# Evaluation.


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


@pytest.mark.parametrize('n, expected', [(1, 1), (3, 1), (4, 1), (5, 2)])
def test_num_eval_batches(n, expected):
  assert pipeline.num_eval_batches(FakeView(n), 4) == expected
  assert len(evaluate(FakeView(n))) == expected


def test_eval_draws_the_same_each_time():
  first = evaluate(FakeView(5), preprocess=CROP)
  assert_same(evaluate(FakeView(5), preprocess=CROP), first)


# Unreadable images.


def test_an_unreadable_image_is_an_error_that_names_the_record():
  view = FakeView(6, corrupt=(4,))
  message = (
    'fake/4: cannot decode 8 bytes .* --config.data.unreadable=skip-and-count'
  )
  with pytest.raises(ValueError, match=message):
    train(view, 2)
  with pytest.raises(ValueError, match=message):
    evaluate(view)


def test_a_truncated_image_is_unreadable():
  jpeg = cv2.imencode('.jpg', picture(0))[1].tobytes()[:-30]
  with pytest.raises(ValueError, match='fake/0: truncated JPEG'):
    evaluate([Record(jpeg, 0, 'fake/0')])


def test_an_image_with_too_many_pixels_is_unreadable():
  png = cv2.imencode('.png', picture(0))[1].tobytes()
  view = [Record(png, 0, 'fake/0'), Record(picture(1), 1, 'fake/1')]
  height, width = picture(0).shape[:2]
  few = ops.parse(
    'resize', image_size=4, channels=3, max_pixels=height * width - 1
  )
  message = rf'fake/0: {height} x {width} pixels .* max_pixels=.*unreadable'
  with pytest.raises(ValueError, match=message):
    evaluate(view, preprocess=few)
  rows = join(evaluate(view, preprocess=few, unreadable='skip-and-count'))
  assert rows['unreadable'][:2].tolist() == [True, False]


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
  with pytest.raises(ValueError, match=r'11 images in a row .*fake/.: cannot'):
    train(view, 1, unreadable='skip-and-count')


def test_eval_masks_an_unreadable_image():
  view = FakeView(6, corrupt=(1, 4))
  rows = join(evaluate(view, unreadable='skip-and-count'))
  assert rows['mask'].tolist() == [1, 0, 1, 1, 0, 1, 0, 0]
  assert rows['unreadable'].tolist() == [0, 1, 0, 0, 1, 0, 0, 0]
  assert rows['label'].tolist() == [0, -1, 2, 3, -1, 5, -1, -1]
  assert not rows['image'][1].any()
  assert rows['mask'].sum() + rows['unreadable'].sum() == len(view)


@pytest.mark.parametrize('make', [train, evaluate])
def test_unknown_policy(make):
  args = (FakeView(3), 1) if make is train else (FakeView(3),)
  with pytest.raises(
    ValueError, match=r"'skip'; choose from \['error', 'skip-"
  ):
    make(*args, unreadable='skip')


# Labels.


@pytest.mark.parametrize('label', [-1, 6, [6]])
def test_label_out_of_range(label):
  view = FakeView(6, labels={4: label})
  message = r'fake/4 has label -?\d, outside of \[0, num_classes=6\)'
  with pytest.raises(ValueError, match=message):
    train(view, 2, num_classes=6)
  with pytest.raises(ValueError, match=message):
    evaluate(view, num_classes=6)


def test_several_labels_are_padded():
  view = FakeView(5, labels={0: [4, 2], 1: [], 2: [1], 3: (0, 1, 2), 4: [3]})
  labels = join(evaluate(view, max_labels=3))['label']
  assert labels.dtype == np.int32
  assert labels.tolist() == [
    [4, 2, -1], [-1, -1, -1], [1, -1, -1], [0, 1, 2],
    [3, -1, -1], [-1, -1, -1], [-1, -1, -1], [-1, -1, -1],
  ]  # fmt: skip
  trained = join(train(view, 5, max_labels=3, batch_size=1))['label']
  assert sorted(trained.tolist()) == sorted(labels[:5].tolist())


def test_label_shape_follows_the_source_or_max_labels():
  assert evaluate(FakeView(2), max_labels=2)[0]['label'].tolist() == [
    [0, -1], [1, -1], [-1, -1], [-1, -1]
  ]  # fmt: skip
  view = FakeView(2, labels={0: [5], 1: [6]})
  assert evaluate(view)[0]['label'].tolist() == [[5], [6], [-1], [-1]]


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
  message = r"test/1 has label \d+, outside .* in '1 of test\[:2\]' of 'shapes:"
  with pytest.raises(ValueError, match=message):
    evaluate(picked, preprocess=RESIZED, max_labels=6, num_classes=6)
  # With several labels allowed, those past the limit are dropped and counted.
  rows = join(evaluate(view, max_labels=2))
  assert rows['label'].tolist() == [[-1, -1], [3, 1], [-1, -1], [-1, -1]]
  assert rows['truncated'].tolist() == [False, True, False, False]
  assert not join(evaluate(view, max_labels=3))['truncated'].any()


# Errors.


def test_errors_of_operations_name_the_record():
  wrong = ops.parse('central_crop', image_size=(9, 9), channels=3)
  message = r'^fake/.: an image of 8x9 .* of 9x9'
  with pytest.raises(ValueError, match=message):
    train(FakeView(4), 1, preprocess=wrong)
  with pytest.raises(ValueError, match=message):
    evaluate(FakeView(4), preprocess=wrong)


@pytest.mark.parametrize('options', [dict(threads=2), dict(workers=1)])
def test_errors_in_threads_and_workers_are_raised(options):
  # Also exceptions that cannot be pickled. The policy does not cover reads.
  with pytest.raises(RuntimeError, match='record 3 failed: LocalError: the d'):
    evaluate(BrokenView(4), unreadable='skip-and-count', **options)
