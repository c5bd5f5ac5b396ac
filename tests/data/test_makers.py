"""Guards the threads and workers that make batches, and their memory."""

import collections
import itertools
import os
import signal
import threading
import time

import jax
import numpy as np
import pytest
from absl import logging

from vit_jax import sharding
from vit_jax.data import makers
from vit_jax.data.slots import Slots


def row_of(batch, row, read=None):
  """Returns a row that tells which one it is."""
  return {
    'image': np.full((16, 2), batch % 256, np.uint8),
    'label': np.int32(1000 * batch + row),
  }


def make(load=row_of, **kwargs):
  defaults = dict(rows=8, count=None, threads=2, workers=0, prefetch=None)
  return makers.make_batches(load, row_of(0, 0), **(defaults | kwargs))


def labels_of(number, rows=8):
  return [1000 * number + row for row in range(rows)]


def is_batch(batch, number):
  return (
    batch['label'].tolist() == labels_of(number)
    and (batch['image'] == number % 256).all()
  )


@pytest.mark.parametrize('threads', [0, 1, 3])
@pytest.mark.parametrize('rows', [1, 7, 33])
def test_all_rows_of_all_batches_in_order(rows, threads):
  found = [
    b['label'].tolist() for b in make(rows=rows, threads=threads, count=5)
  ]
  assert found == [labels_of(number, rows) for number in range(5)]


@pytest.mark.parametrize('held', [0, 1, 2, 3, 20])
def test_batches_keep_their_rows_while_the_caller_holds_them(held):
  kept = []
  for number, batch in enumerate(make(count=30)):
    kept.append((number, batch))
    kept = kept[-held:] if held else []
    assert all(is_batch(b, n) for n, b in kept)


def test_memory_of_batches_is_used_again():
  addresses = set()
  for batch in make(count=30, prefetch=3):
    addresses.add(batch['image'].ctypes.data)
  assert len(addresses) <= 3 + 2


def test_arrays_on_devices_keep_their_rows():
  """The CPU's arrays are this memory itself."""
  mesh = sharding.make_mesh()
  put = [sharding.put_batch(batch, mesh) for batch in make(count=12)]
  for number, batch in enumerate(put):
    assert is_batch(jax.device_get(batch), number)


def test_a_slow_row_delays_only_its_own_piece():
  slow, done = threading.Event(), []

  def load(batch, row, read=None):
    if (batch, row) == (0, 3):
      slow.wait(20)
    done.append((batch, row))
    return row_of(batch, row)

  batches = make(load, threads=2, prefetch=4)
  deadline = time.monotonic() + 20
  # All pieces are single rows.
  while len(done) < 4 * 8 - 1 and time.monotonic() < deadline:
    time.sleep(0.01)
  assert set(done) == set(itertools.product(range(4), range(8))) - {(0, 3)}
  slow.set()
  assert is_batch(next(batches), 0)
  batches.close()


@pytest.mark.parametrize(
  'cores, options, prefetch',
  [
    (2, {}, 2),  # Two batches.
    (2, {'rows': 1}, 4),  # Two pieces for each core.
    (64, {}, 16),  # Worker processes may come.
    (64, {'workers': 0}, 4),  # At most 16 threads.
    (2, {'prefetch': 5}, 5),
  ],
)
def test_number_of_batches_ahead(monkeypatch, cores, options, prefetch):
  monkeypatch.setattr(makers, '_cores', lambda: cores)
  made = []

  def load(batch, row, read=None):
    made.append(batch)
    return row_of(batch, row)

  options = dict(threads=None, workers=None) | options
  batches = make(load, **options)
  next(batches)
  time.sleep(0.3)
  assert len(set(made)) == prefetch + 1
  batches.close()


def test_the_first_error_of_a_batch_is_raised():
  def load(batch, row, read=None):
    if batch == 1 and row in (2, 5):
      time.sleep(0.1 if row == 2 else 0)
      raise ValueError(f'row {row}')
    return row_of(batch, row)

  batches = make(load)
  assert is_batch(next(batches), 0)
  with pytest.raises(ValueError, match='row 2'):
    next(batches)
  with pytest.raises(StopIteration):
    next(batches)


def waiting(cores, monkeypatch, *, load_sec, step_sec, count=None):
  """Returns how many workers start within 0.6 seconds."""
  monkeypatch.setattr(makers, '_cores', lambda: cores)
  monkeypatch.setattr(makers, '_OBSERVED_SEC', 0.2)
  started = []
  monkeypatch.setattr(
    makers._Makers, 'start_workers', lambda self, n, *_: started.append(n)
  )

  def load(batch, row, read=None):
    time.sleep(load_sec)
    return row_of(batch, row)

  batches = make(load, threads=1, workers=None, count=count)
  end = time.monotonic() + 0.6
  while time.monotonic() < end:
    next(batches)
    time.sleep(step_sec)
  batches.close()
  return started


def test_workers_start_only_if_the_loop_waits(monkeypatch):
  assert waiting(8, monkeypatch, load_sec=0.002, step_sec=0) == [8]
  assert waiting(8, monkeypatch, load_sec=0.0005, step_sec=0.04) == []
  assert waiting(1, monkeypatch, load_sec=0.002, step_sec=0) == []
  # An evaluation would be over before they were ready.
  assert waiting(8, monkeypatch, load_sec=0.002, step_sec=0, count=200) == []
  assert waiting(8, monkeypatch, load_sec=0.002, step_sec=0, count=9999) == [8]


def warn(batch, row, read=None):
  logging.warning('made by %d', os.getpid())
  return row_of(batch, row)


def test_warnings_of_workers_reach_the_log(caplog):
  batches = make(warn, workers=1)
  while not batches.ready():
    next(batches)
    time.sleep(0.05)
  for _ in range(10):
    next(batches)
  assert f'made by {batches.worker_ids()[0]}' in caplog.messages
  batches.close()


def test_a_killed_worker_is_an_error():
  batches = make(workers=1)
  while not batches.ready():
    next(batches)
    time.sleep(0.05)
  os.kill(batches.worker_ids()[0], signal.SIGKILL)
  message = r'code -9; .*--config\.data\.workers=N'
  with pytest.raises(RuntimeError, match=message):
    collections.deque(batches, maxlen=0)


def test_the_rate_is_that_of_all_threads():
  def load(batch, row, read=None):
    time.sleep(0.01)
    return row_of(batch, row)

  batches = make(load, threads=4)
  for _ in range(6):
    next(batches)
  assert 250 < batches.images_per_sec() <= 400
  batches.close()


def test_slots_are_free_when_no_array_is_left():
  freed = []
  slots = Slots(row_of(0, 0), 4, 2)
  batch = slots.lend(1, freed.append)
  view = batch['image'][1:]
  batch['label'][:] = 7
  assert slots.arrays(1)['label'].tolist() == [7] * 4
  assert not slots.arrays(0)['label'].any()
  del batch
  assert not freed
  del view
  assert freed == [1]


def test_other_processes_can_map_slots():
  slots = Slots(row_of(0, 0), 4, 2, shared=True)
  other = Slots(row_of(0, 0), 4, 2, file=os.dup(slots.file))
  other.arrays(1)['image'][2] = 9
  assert (slots.arrays(1)['image'][2] == 9).all()
  assert slots.arrays(1)['image'].ctypes.data % 64 == 0
