"""Guards: runs are followed, and their curves stay small."""

import json

from tests.compare import made
from tests.compare.live import runs
from vit_jax.compare import expected
from vit_jax.compare.live import reading


def _loss(watcher, name):
  return watcher.news(0)['runs'][name]['curves']['train/loss']


def test_only_news_are_told(tmp_path, monkeypatch):
  monkeypatch.setattr(reading, 'PAUSE', 0)
  run = runs.make(tmp_path / 'a', range(1, 4))
  runs.make(tmp_path / 'b', [1])
  watcher = reading.Watcher([tmp_path])
  first = watcher.news(0)
  assert first['names'] == ['a', 'b']
  assert first['runs']['a']['curves']['train/loss'] == {
    'step': [1, 2, 3],
    'hours': [0.01, 0.02, 0.03],
    'mean': [1.0, 0.5, 0.33333],
  }
  runs.log(run, [4], test__accuracy=0.5, infinite=float('inf'))
  with open(run / 'metrics.jsonl', 'a') as file:
    file.write('damaged\n{"step": 5, "train/loss"')
  news = watcher.news(first['look'])
  assert list(news['runs']) == ['a']
  assert news['runs']['a']['latest']['test__accuracy'] == 0.5
  json.dumps(news, allow_nan=False)
  assert _loss(watcher, 'a')['step'] == [1, 2, 3, 4]
  # The rest of the line comes later.
  with open(run / 'metrics.jsonl', 'a') as file:
    file.write(': 0.125}\n')
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


def test_a_curve_has_few_points_and_keeps_its_extremes():
  values = [
    (step, step / 10, 7.0 if step == 77_777 else float(step % 2))
    for step in range(1, 100_001)
  ]
  columns = reading.thinned(values)
  assert reading.POINTS / 2 <= len(columns['mean']) <= reading.POINTS
  assert columns['step'][-1] == 100_000
  assert columns['hours'][-1] == 10_000
  assert (min(columns['low']), max(columns['high'])) == (0.0, 7.0)
  assert columns['mean'][3] == 0.5
  # Curves of few values, such as evaluations, are exact.
  few = [(step, 0, step) for step in range(reading.POINTS)]
  assert reading.thinned(few)['mean'] == list(range(reading.POINTS))
  assert 'low' not in reading.thinned(few)


def test_the_published_curve_is_told_with_what_it_says(tmp_path):
  made.run(tmp_path / 'b16', {40: 50.8})
  runs.make(tmp_path / 'other', [1])
  news = reading.Watcher([tmp_path], expected.choose('auto')).news(0)
  told = json.loads(json.dumps(news, allow_nan=False))['runs']
  found = told['b16']['expected']
  assert found['sentence'].endswith('published 50.8: on track')
  assert len(found['epochs']) == len(found['shares']) == 161
  assert told['b16']['epochs_per_step'] == 2048 / 1_281_167
  # A run without a curve, whose epochs are not known either.
  assert told['other']['expected']['epochs'] == []
  assert told['other']['epochs_per_step'] is None
