"""Guards: `results` reads progress and measurements from a work directory."""

import math

import pytest

from tests.run_files import leave
from vit_jax import config as config_lib
from vit_jax import results


@pytest.mark.parametrize(
  ('text', 'step'), [('12\n', 12), ('', None), ('x', None), ('-1', None)]
)
def test_finished_at(tmp_path, text, step):
  assert results.finished_at(tmp_path) is None
  (tmp_path / 'DONE').write_text(text)
  assert results.finished_at(tmp_path) == step


def _config():
  config = config_lib.default()
  config.total_steps = 20
  config.evals.a = config_lib.evaluation('test', every=5)
  config.evals.b = config_lib.evaluation('test')
  return config


@pytest.mark.parametrize(
  ('step', 'rows', 'expected'),
  [
    (0, [], []),
    (10, [], ['a']),
    (10, [{'step': 10, 'train/loss': 1}], ['a']),
    (10, [{'step': 10, 'a': 1}], ['a']),
    (10, [{'step': 5, 'a/accuracy': 1}], ['a']),
    (10, [{'step': 10, 'a/accuracy': 1}], []),
    (9, [], []),
    (20, [{'step': 20, 'a/accuracy': 1}], ['b']),
  ],
)
def test_missing_evaluations_of_a_stopped_run(step, rows, expected):
  assert results.unevaluated(_config(), rows, step) == expected


@pytest.mark.parametrize(
  ('metric', 'values', 'best'),
  [
    ('a/accuracy', [0.1, 0.5, 0.3], 0.5),
    ('a/loss', [3.0, 1.0, 2.0], 1.0),
    ('a/loss', [3.0, math.nan], 3.0),
    ('a/loss', [], None),
    ('', [1.0], None),
  ],
)
def test_best_value(metric, values, best):
  name = metric or 'a/loss'
  rows = [{'step': i, name: value} for i, value in enumerate(values)]
  assert results.best_value(metric, rows + [{'step': 9}]) == best


def test_a_repeated_evaluation_replaces_all_of_its_numbers(tmp_path):
  assert results.final_metrics(tmp_path) == {}
  leave(
    tmp_path,
    {'step': 5, 'b/accuracy': 0.5},
    {'step': 10, 'train/loss': 1.0},
    {'step': 10, 'a/accuracy': 0.5, 'a/excluded': 2.0},
    {'step': 10, 'b/accuracy': 0.25},
    {'step': 10, 'a/accuracy': 0.75},
  )
  assert results.final_metrics(tmp_path) == {
    'step': 10,
    'train/loss': 1.0,
    'a/accuracy': 0.75,
    'b/accuracy': 0.25,
  }


def test_the_numbers_of_the_best_step(tmp_path):
  leave(
    tmp_path,
    {'step': 5, 'val/accuracy': 0.5, 'val/loss': 1.0},
    {'step': 10, 'val/accuracy': 0.75, 'val/loss': 1.5},
    {'step': 10, 'few/5shot/accuracy': 0.2},
    {'step': 15, 'val/accuracy': 0.75, 'val/loss': 0.5},
  )
  # The first of equal values counts, and other steps add no numbers.
  assert results.best_row(tmp_path, 'val/accuracy') == {
    'step': 10,
    'val/accuracy': 0.75,
    'val/loss': 1.5,
    'few/5shot/accuracy': 0.2,
  }
  assert results.best_row(tmp_path, 'val/loss')['step'] == 15


@pytest.mark.parametrize('minutes', [0, 100])
@pytest.mark.parametrize(
  'changes',
  # The first save may have taken half an hour.
  [{'every': 100, 'every_minutes': 10.0}, {'every': 'auto'}],
)
def test_checkpoints_by_the_clock_that_are_gone_are_missed(
  tmp_path, changes, minutes
):
  config = _config()
  config.checkpoint.update(changes)
  config_lib.save(config, tmp_path)
  leave(
    tmp_path,
    *({'step': i, 'unix_time': 60.0 * minutes * i} for i in (1, 2)),
  )
  if not minutes:
    return results.check_not_lost(tmp_path)
  with pytest.raises(ValueError, match='goes to step 2: what was in checkp'):
    results.check_not_lost(tmp_path)


def test_no_best_step(tmp_path):
  with pytest.raises(ValueError, match=r"no value of 'a/loss' .* no metrics"):
    results.best_row(tmp_path, 'a/loss')
  leave(tmp_path, {'step': 1, 'a/accuracy': 1, 'a/loss': math.nan})
  with pytest.raises(ValueError, match=r"it has \['a/accuracy', 'a/loss'\]"):
    results.best_row(tmp_path, 'a/loss')
