"""Guards: the results and the table of a sweep have the right numbers."""

from tests.sweep import fakes
from vit_jax.sweep import Sweep, table


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
