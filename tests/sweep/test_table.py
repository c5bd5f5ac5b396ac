"""Guards: the results and the table of a sweep have the right numbers."""

import pandas as pd
import pytest

from tests.sweep import fakes
from vit_jax.sweep import Run, Study, Sweep, table


def _all(sweep):
  finished = {}
  for study in sweep.studies:
    for run in study.candidates:
      finished[run.name] = fakes.measured(run)
    for run in study.finals_of(study.candidates[1]):
      finished[run.name] = fakes.measured(run)
  return finished


def test_mean_and_sample_deviation():
  runs = [
    {'test/accuracy': value, 'train/accuracy': 1.0, 'test/loss': 9.0}
    for value in (0.9, 0.8, 1.0)
  ]
  assert table.mean_and_std(runs) == {'test': '90.00 ± 10.00'}
  assert table.mean_and_std(runs[:1]) == {'test': '90.00'}
  assert table.mean_and_std([]) == {}


def test_the_table():
  sweep = Sweep([fakes.study('a'), fakes.study('long name')])
  assert table.render(sweep, _all(sweep)) == '\n'.join(
    [
      '| study     | run       | held-out | test          | runs |',
      '| ---       | ---       | ---:     | ---:          | ---: |',
      '| a         | rate=0.01 | 75.00    | 90.00 ± 10.00 | 3    |',
      '| long name | rate=0.01 | 75.00    | 90.00 ± 10.00 | 3    |',
    ]
  )


def test_the_table_of_an_unfinished_sweep():
  sweep = Sweep([fakes.study('a'), fakes.study('b')])
  finished = _all(sweep)
  del finished['a/rate=0.01,seed=2'], finished['b/rate=0.1']
  assert table.render(sweep, finished).splitlines()[2:] == [
    '| a     | rate=0.01      | 75.00    | 85.00 ± 7.07 | 2 of 3            |',
    '| b     | not chosen yet |          |              | 3 of 4 candidates |',
  ]


def test_a_study_without_finals_lists_its_candidates():
  runs = fakes.study().candidates[:2]
  sweep = Sweep([Study('a', runs), Study('f', finals=[Run('f/x', 'c.py')])])
  finished = {
    runs[0].name: fakes.measured(runs[0]),
    'f/x': {'real/accuracy': 0.5, 'test/accuracy': 0.25},
  }
  assert table.render(sweep, finished).splitlines()[2:] == [
    '| a     | rate=0.001 | 50.00    |       |       | 1    |',
    '| a     | rate=0.01  |          |       |       | 0    |',
    '| f     |            |          | 50.00 | 25.00 | 1    |',
  ]


def test_results_do_not_depend_on_when_they_were_measured(tmp_path):
  sweep = Sweep([fakes.study('a', rates=(0.001, 0.01), seeds=1)])
  finished = _all(sweep)
  assert table.write(tmp_path, sweep, finished) == ''
  text = (tmp_path / 'results.md').read_text()
  assert text == table.render(sweep, finished) + '\n'
  expected = (
    'study,run,role,rate,step,validation/accuracy,seed,test/accuracy\n'
    'a,a/rate=0.001,candidate,0.001,7,0.5,,\n'
    'a,a/rate=0.01,chosen,0.01,7,0.75,,\n'
    'a,"a/rate=0.01,seed=0",final,0.01,7,,0.0,0.9\n'
  )
  assert (tmp_path / 'results.csv').read_text() == expected
  for metrics in finished.values():
    metrics |= {'images_per_second': 3.0, 'goodput/training': 0.5}
  table.write(tmp_path, sweep, finished)
  assert (tmp_path / 'results.csv').read_text() == expected


def test_parquet_has_the_same_table(tmp_path):
  pytest.importorskip('pyarrow')
  sweep = Sweep([fakes.study('a', rates=(0.001, 0.01), seeds=1)])
  table.write(tmp_path, sweep, _all(sweep))
  pd.testing.assert_frame_equal(
    pd.read_parquet(tmp_path / 'results.parquet'),
    table.gather(sweep, _all(sweep)),
  )


def test_a_summary_follows_the_table(tmp_path):
  sweep = Sweep(
    [fakes.study()], summary=lambda frame: f'{len(frame)} runs in all'
  )
  assert table.write(tmp_path, sweep, _all(sweep)) == '\n7 runs in all\n'
  text = (tmp_path / 'results.md').read_text()
  assert text.endswith('| 3    |\n\n7 runs in all\n')
