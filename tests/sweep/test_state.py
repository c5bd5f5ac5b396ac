"""Guards: a launcher reads the state of an earlier one correctly from disk."""

import json
import threading

import pytest

from tests.sweep import fakes
from vit_jax import results
from vit_jax.sweep import Run, Study, Sweep, state


def test_a_second_launcher_is_refused(tmp_path):
  with (
    state.lock(tmp_path),
    pytest.raises(ValueError, match=r'in use by another launcher \(process'),
    state.lock(tmp_path),
  ):
    pass
  with state.lock(tmp_path):
    pass


def test_a_lock_is_waited_for(tmp_path):
  """It waits until another thread unlocks it, at most `wait` seconds."""
  held, go_on = threading.Event(), threading.Event()

  def hold():
    with state.lock(tmp_path, 'other'):
      held.set()
      go_on.wait(30)

  thread = threading.Thread(target=hold)
  thread.start()
  assert held.wait(30)
  with state.lock(tmp_path):  # This is another lock.
    pass
  with (
    pytest.raises(state.InUseError, match='by another reader'),
    state.lock(tmp_path, 'other', holder='reader', wait=0.3),
  ):
    pass
  threading.Timer(0.3, go_on.set).start()
  with state.lock(tmp_path, 'other', wait=30):
    pass
  thread.join()


def _attempts(path):
  events = state.Events(path)
  events.close()
  return {name: vars(value) for name, value in events.attempts.items()}


def test_attempts_are_counted_over_launchers(tmp_path):
  events = state.Events(tmp_path)
  for code in (1, 75, 76, 77, -9, 2):
    events.started('a', 'job')
    events.ended('a', code)
  events.started('b', '17')
  events.close()
  assert _attempts(tmp_path) == {
    'a': dict(failures=2, restarts=4, handle=None),
    'b': dict(failures=0, restarts=0, handle='17'),
  }
  # The launcher was killed while it wrote a line.
  with (tmp_path / 'events.jsonl').open('a') as file:
    file.write('{"run": "a", "co')
  events = state.Events(tmp_path)
  events.ended('b', 1)
  events.close()
  assert _attempts(tmp_path)['b'] == dict(failures=1, restarts=0, handle=None)
  events = state.Events(tmp_path)
  events.over()
  events.close()
  assert _attempts(tmp_path) == {}


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
  # `results`, which the runs use, reads the same.
  assert results.final_metrics(tmp_path) == expected
  assert results.finished_at(tmp_path) == 7


def test_a_started_run_cannot_change(tmp_path):
  def sweep(**overrides):
    return Sweep([Study('a', [Run('r', 'c.py', overrides)])])

  nothing, all_runs = (lambda name: False), (lambda name: True)
  with pytest.raises(ValueError, match='holds no sweep'):
    state.recorded(tmp_path)
  state.record(tmp_path, sweep(size=(8, 8)), all_runs)
  state.record(tmp_path, sweep(size=(8, 8)), all_runs)
  with pytest.raises(ValueError, match=r'the run r as .*9.*another --workdir'):
    state.record(tmp_path, sweep(size=(8, 8), x=9), all_runs)
  state.record(tmp_path, sweep(size=(8, 9)), nothing)
  [study] = state.recorded(tmp_path).studies
  assert study.candidates == (Run('r', 'c.py', {'size': (8, 9)}),)
  # The run is remembered even if a sweep in between leaves it out.
  state.record(tmp_path, fakes.sweep(), all_runs)
  with pytest.raises(ValueError, match='the run r as'):
    state.record(tmp_path, sweep(size=(8, 8)), all_runs)
