"""Guards the threads and workers that make batches, and their memory."""

import collections
import dataclasses
import functools
import os
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from vit_jax.data.batches import loader
from vit_jax.data.batches.rows import Reading
from vit_jax.data.ops import decoding


def row_of(batch, row):
  """Returns a row that tells which one it is."""
  return {
    'image': np.full((16, 2), batch % 256, np.uint8),
    'label': np.int32(1000 * batch + row),
  }


@dataclasses.dataclass
class FakeRows:
  """What the loader knows of `Rows`."""

  load: Callable
  rows: range
  view = ()

  def masked_row(self):
    return row_of(0, 0)

  def __call__(self, batch, row):
    return self.load(batch, row)


def make(load=row_of, *, rows=8, count=None, **kwargs):
  how = Reading(num_classes=1, **(dict(threads=2, workers=0) | kwargs))
  return loader.Batches(FakeRows(load, range(rows)), count, how)


def until_ready(batches):
  """Takes batches until the workers have taken over."""
  while not batches.ready():
    next(batches)
    time.sleep(0.05)
  return batches


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


def test_the_first_error_of_a_batch_is_raised():
  def load(batch, row):
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


def decode_in_a_worker(parent, most, batch, row):
  with decoding.TURNS:
    most.append(row)
    time.sleep(0.01)
    number = len(most)
    most.pop()
  if os.getpid() != parent and number > 1:
    raise ValueError('two threads decode')
  return row_of(batch, row)


def test_a_worker_with_many_threads_for_reads_decodes_with_few():
  """And it outlasts the signals of a step; one that is killed is an error."""
  load = functools.partial(decode_in_a_worker, os.getpid(), [])
  batches = until_ready(make(load, workers=1, threads=None, read_ahead=4))
  [worker] = batches.worker_ids()
  for number in (signal.SIGINT, signal.SIGHUP):
    os.kill(worker, number)
  time.sleep(0.1)
  collections.deque((next(batches) for _ in range(20)), maxlen=0)
  os.kill(worker, signal.SIGKILL)
  with pytest.raises(RuntimeError, match=r'--config\.data\.workers=N'):
    collections.deque(batches, maxlen=0)


def raise_in_a_worker(parent, batch, row):
  if os.getpid() == parent:
    return row_of(batch, row)
  raise ValueError('it is locked', threading.Lock())


def test_an_error_of_a_worker_that_cannot_be_pickled():
  load = functools.partial(raise_in_a_worker, os.getpid())
  with pytest.raises(ValueError, match='it is locked'):
    collections.deque(until_ready(make(load, workers=1)), maxlen=0)


class Elsewhere:
  """Data that only the parent can open."""

  def __call__(self, batch, row):
    return row_of(batch, row)

  def __reduce__(self):
    return open, ('/nowhere/data',)


def test_a_worker_that_cannot_open_the_data_says_why(capfd):
  batches = make(Elsewhere(), workers=1)
  with pytest.raises(RuntimeError, match='did not start, or ended early'):
    until_ready(batches)
  assert "No such file or directory: '/nowhere/data'" in capfd.readouterr().err


def waiting(cores, monkeypatch, *, load_sec, step_sec, count=None):
  """Returns how many workers start within 0.6 seconds."""
  monkeypatch.setattr(loader.joblib, 'cpu_count', lambda: cores)
  monkeypatch.setattr(loader, '_OBSERVED_SEC', 0.2)
  started = []
  monkeypatch.setattr(
    loader.Batches, '_start_workers', lambda self: started.append(self)
  )

  def load(batch, row):
    time.sleep(load_sec)
    return row_of(batch, row)

  batches = make(load, threads=1, workers=None, count=count)
  end = time.monotonic() + 0.6
  while time.monotonic() < end:
    next(batches)
    time.sleep(step_sec)
  batches.close()
  return bool(started)


def test_workers_start_only_if_the_loop_waits(monkeypatch):
  assert waiting(8, monkeypatch, load_sec=0.002, step_sec=0)
  assert not waiting(8, monkeypatch, load_sec=0, step_sec=0.3)
  assert not waiting(1, monkeypatch, load_sec=0.002, step_sec=0)
  # An evaluation would be over before they were ready.
  assert not waiting(8, monkeypatch, load_sec=0.002, step_sec=0, count=60)
