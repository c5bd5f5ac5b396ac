"""Guards: the best held-out accuracy wins, and the table has its numbers."""

import pytest

from tests.sweep import fakes
from vit_jax.sweep import Run, Study, Sweep, schedule, state, table


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
  assert state.mean_and_std(runs) == {'test': '90.00 ± 10.00'}
  assert state.mean_and_std(runs[:1]) == {'test': '90.00'}
  assert state.mean_and_std([]) == {}


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


def _finished(runs):
  return {run.name: fakes.measured(run) for run in runs}


def _names(runs):
  return [run.name for run in runs]


def test_finals_start_once_all_candidates_are_finished():
  study = fakes.study()
  sweep = Sweep([study])
  rates = ['a/rate=0.001', 'a/rate=0.01', 'a/rate=0.1', 'a/rate=1.0']
  assert _names(schedule.due(sweep, {})) == rates
  finished = _finished(study.candidates[:3])
  assert _names(schedule.due(sweep, finished)) == ['a/rate=1.0']
  assert schedule.reported(study, finished) is None
  finished = _finished(study.candidates)
  # 0.01 and 0.1 are equally good: the earlier one wins.
  finals = [f'a/rate=0.01,seed={seed}' for seed in range(3)]
  assert _names(schedule.due(sweep, finished)) == finals
  assert schedule.total(sweep, {}) == schedule.total(sweep, finished) == 7
  finished |= _finished(schedule.due(sweep, finished)[:2])
  assert _names(schedule.due(sweep, finished)) == finals[2:]


def test_a_candidate_may_be_listed_twice():
  study = fakes.study(rates=(0.1, 0.001, 0.1))
  finished = _finished(study.candidates)
  assert schedule.winner(study, finished).name == 'a/rate=0.1'


def test_the_test_accuracy_does_not_affect_the_choice():
  study = fakes.study()
  finished = _finished(study.candidates)
  # These metrics must not affect the choice.
  finished['a/rate=1.0']['test/accuracy'] = 1.0
  finished['a/rate=0.001']['train/accuracy'] = 1.0
  assert schedule.winner(study, finished).name == 'a/rate=0.01'
  del finished['a/rate=1.0']['validation/accuracy']
  with pytest.raises(ValueError, match=r'a/rate=1.0 has no finite.*held-out'):
    schedule.winner(study, finished)


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_a_nonfinite_accuracy_is_reported_at_once(value):
  study = fakes.study()
  finished = {'a/rate=0.1': {'step': 7, 'validation/accuracy': value}}
  with pytest.raises(ValueError, match=r'candidate a/rate=0.1 has no finite'):
    schedule.winner(study, finished)


def test_a_run_waits_for_the_weights_it_starts_from():
  first, other = Run('first', 'c.py'), Run('other', 'c.py')
  second = Run('second', 'c.py', {'init.checkpoint': 'run:first'})
  third = Run('third', 'c.py', {'init.checkpoint': 'run:second'})
  sweep = Sweep([Study('a', finals=[third, second, first, other])])
  assert _names(schedule.due(sweep, {})) == ['first', 'other']
  finished = {'first': {}}
  assert _names(schedule.due(sweep, finished)) == ['second', 'other']
  assert schedule.total(sweep, {}) == 4
