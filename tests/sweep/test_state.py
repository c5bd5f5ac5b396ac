"""Guards: a launcher reads the state of an earlier one correctly from disk."""

import contextlib
import json
import os
import threading

import pytest

from tests.sweep import fakes
from vit_jax.sweep import Run, Study, Sweep, state


def test_a_second_launcher_is_refused(tmp_path):
  with state.lock(tmp_path):
    with state.lock(tmp_path, 'other'):  # This is another lock.
      pass
    with (
      pytest.raises(state.InUseError, match='by another reader, process'),
      state.lock(tmp_path, holder='reader', wait=0.3),
    ):
      pass
  with state.lock(tmp_path):
    pass


def test_a_lock_is_waited_for(tmp_path):
  stack = contextlib.ExitStack()
  stack.enter_context(state.lock(tmp_path))
  threading.Timer(0.3, stack.close).start()
  with state.lock(tmp_path, wait=30):
    pass


def test_a_run_is_finished_if_its_done_file_names_its_last_step(tmp_path):
  assert state.final_metrics(tmp_path) is None
  rows = [
    {'step': 3, 'validation/accuracy': 0.25},
    {'step': 7, 'train/loss': 1.5},
    {'step': 7, 'validation/accuracy': 0.5},
  ]
  text = ''.join(json.dumps(row) + '\n' for row in rows) + '{"step": 7, "cut'
  (tmp_path / 'metrics.jsonl').write_text(text)
  (tmp_path / 'config.json').write_text('{"total_steps": 7}')
  assert state.final_metrics(tmp_path) is None
  for done in ('', '3\n'):
    (tmp_path / 'DONE').write_text(done)
    assert state.final_metrics(tmp_path) is None
  (tmp_path / 'DONE').write_text('7\n')
  expected = {'step': 7, 'train/loss': 1.5, 'validation/accuracy': 0.5}
  assert state.final_metrics(tmp_path) == expected


def test_a_started_run_cannot_change(tmp_path):
  where = fakes.folders(tmp_path)

  def record(sweep):
    state.record(where, 'x.py:folder:gs://b/x/', sweep)

  def sweep(**overrides):
    return Sweep([Study('a', [Run('r', 'c.py', overrides)])])

  with pytest.raises(ValueError, match='names no sweep'):
    state.recorded(tmp_path)
  record(sweep(size=(8, 8)))
  record(sweep(size=(8, 9)))  # It was not started.
  where.workdir('r').mkdir(parents=True)
  record(sweep(size=(8, 9)))
  with pytest.raises(ValueError, match=r'the run r as .*9.*another --workdir'):
    record(sweep(size=(8, 9), x=9))
  # The run is remembered even if a sweep in between leaves it out.
  record(fakes.sweep())
  with pytest.raises(ValueError, match='the run r as'):
    record(sweep(size=(8, 8)))
  file, found = state.recorded(tmp_path)
  assert file == f'{os.getcwd()}/x.py:folder:gs://b/x/'
  assert found == where
