"""Guards: runs are followed by their new rows alone, and curves stay small."""

import json
import threading

import pytest

from tests.compare.live import runs
from vit_jax.compare.live import reading


def _loss(watcher, name):
  return watcher.news(0)['runs'][name]['curves']['train/loss']


def test_only_new_rows_are_read(tmp_path, monkeypatch):
  run = runs.make(tmp_path / 'a', range(1, 4))
  runs.make(tmp_path / 'b', [1])
  watcher = reading.Watcher([tmp_path])
  watcher.look()
  first = watcher.news(0)
  assert first['names'] == ['a', 'b']
  assert _loss(watcher, 'a') == {
    'step': [1, 2, 3],
    'hours': [0.01, 0.02, 0.03],
    'mean': [1.0, 0.5, 0.33333],
  }
  parsed = []
  parse = reading.metrics.parse
  monkeypatch.setattr(
    reading.metrics, 'parse', lambda line: parsed.append(line) or parse(line)
  )
  runs.log(run, [4], test__accuracy=0.5, infinite=float('inf'))
  with open(run / 'metrics.jsonl', 'a') as file:
    file.write('damaged\n{"step": 5, "train/loss"')
  watcher.look()
  assert len(parsed) == 2
  news = watcher.news(first['look'])
  assert list(news['runs']) == ['a']
  assert news['runs']['a']['latest']['test__accuracy'] == 0.5
  json.dumps(news, allow_nan=False)
  assert _loss(watcher, 'a')['step'] == [1, 2, 3, 4]
  # The rest of the line comes later.
  with open(run / 'metrics.jsonl', 'a') as file:
    file.write(': 0.125}\n')
  watcher.look()
  assert _loss(watcher, 'a')['mean'][-1] == 0.125
  assert watcher.news(watcher.news(0)['look'])['runs'] == {}
  # To a page that knows an earlier server, everything is new.
  assert list(watcher.news(10**9)['runs']) == ['a', 'b']


def test_a_resumed_run_repeats_its_rows(tmp_path):
  run = runs.make(tmp_path / 'a', range(1, 10))
  watcher = reading.Watcher([tmp_path])
  watcher.look()
  (run / 'metrics.jsonl').unlink()
  # The file is soon as long as before, and longer.
  runs.log(run, [1, 2, *range(30, 50)])
  watcher.look()
  assert _loss(watcher, 'a')['step'] == [1, 2, *range(30, 50)]
  (run / 'DONE').write_text('50\n')
  look = watcher.news(0)['look']
  watcher.look()
  assert watcher.news(look)['runs']['a']['state'] == 'finished'


@pytest.mark.parametrize('slow', ['finished_at', 'content'])
def test_a_slow_file_system_delays_no_answer(tmp_path, monkeypatch, slow):
  run = runs.make(tmp_path / 'a', [1])
  monkeypatch.setattr(reading.buckets, 'is_store', lambda path: True)
  watcher = reading.Watcher([tmp_path])
  watcher.look()
  entered, answer = threading.Event(), threading.Event()
  module = reading.results if slow == 'finished_at' else reading.files
  fast = getattr(module, slow)

  def wait(path):
    entered.set()
    assert answer.wait(20)
    return fast(path)

  monkeypatch.setattr(module, slow, wait)
  runs.log(run, [2])
  now = reading.time.monotonic()
  monkeypatch.setattr(reading.time, 'monotonic', lambda: now + 120)
  thread = threading.Thread(target=watcher.look)
  thread.start()
  assert entered.wait(20)
  news = watcher.news(0)
  answer.set()
  thread.join()
  for then, step, unread in ((news, 1, 120), (watcher.news(0), 2, 0)):
    assert then['runs']['a']['latest']['step'] == step
    assert then['unread'] == {'a': unread}


def test_a_curve_has_few_points_and_keeps_its_extremes():
  values = []
  for step in range(1, 100_001):
    values += [step, step / 10, 7.0 if step == 77_777 else float(step % 2)]
  columns = reading.thinned(values)
  assert reading.POINTS / 2 <= len(columns['mean']) <= reading.POINTS
  assert columns['step'][-1] == 100_000
  assert columns['hours'][-1] == 10_000
  assert (min(columns['low']), max(columns['high'])) == (0.0, 7.0)
  assert columns['mean'][3] == 0.5
  # Curves of few values, such as evaluations, are exact.
  few = [n for step in range(reading.POINTS) for n in (step, 0, step)]
  assert reading.thinned(few)['mean'] == list(range(reading.POINTS))
  assert 'low' not in reading.thinned(few)
